"use strict";
// The fragment of the address: what is seen, so that a link shows it again.

/** What a fragment asks for, as far as this page has it. */
function fromFragment(fragment) {
  const asked = new URLSearchParams(fragment.slice(1));
  const place = (key) => maps.findIndex((map) => asked.has(key) && map.condition === asked.get(key));
  const whole = (value, least, below) =>
    /^\d{1,9}$/.test(value) && value >= least && value < below ? Number(value) : -1;
  const view = (asked.get("view") ?? "").split(",").map(Number);
  const color = place("colors");
  const shown = Math.max(0, place("condition"));
  const facets = (asked.get("facets") ?? "").split(",").map((value) => whole(value, 1, 256) - 1);
  return {
    map: shown,
    color,
    point: whole(asked.get("point") ?? "", 0, count),
    words: asked.get("search") ?? "",
    facets: new Set(facets.filter((facet) => facet >= 0 && facet < maps[color < 0 ? shown : color].facets.length)),
    view: view.length === 3 && view.every(Number.isFinite) && view[2] > 0 ? view : null,
  };
}

/** The fragment that asks for a state. */
function toFragment(state) {
  const asked = new URLSearchParams({ condition: maps[state.map].condition });
  if (state.color >= 0) asked.set("colors", maps[state.color].condition);
  if (state.point >= 0) asked.set("point", state.point);
  if (state.words.trim()) asked.set("search", state.words);
  if (state.facets.size) asked.set("facets", [...state.facets].map((facet) => facet + 1).join(","));
  if (state.view) asked.set("view", state.view.map((number) => Number(number.toFixed(3))).join(","));
  return "#" + asked;
}
