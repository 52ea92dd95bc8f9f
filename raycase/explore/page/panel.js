"use strict";
// What stands beside and below the map: legend, texts found, the selected text with its neighbours on each map.

const SHOWN_HITS = 100;
const at = (id) => document.getElementById(id);

/** A facet's words in one line. */
function facetName(facet, words = 3) {
  return facet.words.slice(0, words).join(", ") || "no words";
}

/** The legend of a map's facets; `pressed` are those that are shown alone, `toggle` is called with a facet. */
function showLegend(map, pressed, toggle) {
  const entries = map.facets.map((facet, i) => {
    const dot = element("span", { className: "dot" });
    dot.style.background = colorOf(i);
    const name = element("span", { className: "words", dir: "auto" }, seen(facet.words.join(", ") || "no words"));
    const rows = element("span", { className: "rows" }, facet.rows.toLocaleString("en"));
    const button = element("button", { type: "button", "aria-pressed": pressed.has(i), onclick: () => toggle(i) });
    button.append(dot, name, rows);
    return element("li", {}, button);
  });
  at("legend").replaceChildren(...entries);
  at("legend").classList.toggle("some", pressed.size > 0);
  at("all").hidden = !pressed.size;
}

/** A text that selects its point, and shows where it is while it is pointed at. */
function textButton(point, map, choose, peek) {
  const show = () => peek(point);
  const hide = () => peek(-1);
  const shown = { onclick: () => choose(point), onmouseenter: show, onfocus: show, onmouseleave: hide, onblur: hide };
  return element("button", { type: "button", dir: "auto", ...shown }, ...marked(data.texts[point], endsOf(map, point)));
}

/** The texts that a search found; null: without a search. */
function showHits(points, map, choose, peek) {
  at("found").hidden = !points;
  if (!points) return;
  const more = points.length > SHOWN_HITS ? `, the first ${SHOWN_HITS} here` : "";
  at("count").textContent = `${points.length.toLocaleString("en")} of ${count.toLocaleString("en")} texts${more}`;
  const hits = points.slice(0, SHOWN_HITS).map((point) => element("li", {}, textButton(point, map, choose, peek)));
  at("hits").replaceChildren(...hits);
}

/** The selected text and its neighbours on each map, side by side; -1: none. */
function showDetails(point, current, choose, peek) {
  at("details").hidden = point < 0;
  if (point < 0) return;
  at("text").replaceChildren(...marked(data.texts[point], endsOf(current, point)));
  at("which").textContent = `id ${seen(data.ids[point])}${data.sampled[point] ? "" : "; it stands by its nearest in the sample"}`;
  const columns = maps.map((map) => {
    const facet = map.facets[map.facet[point]];
    const near = neighbours(map, point).map((each) => {
      const cosine = element("span", { className: "cosine" }, each.cosine.toFixed(2));
      return element("li", {}, cosine, textButton(each.point, map, choose, peek));
    });
    const title = element("h3", {}, seen(map.name));
    const dot = element("span", { className: "dot" });
    dot.style.background = colorOf(map.facet[point]);
    const chip = element("p", { className: "chip" }, dot, seen(facetName(facet)));
    const label = { "aria-label": `Nearest under ${seen(map.name)}` };
    const column = element("section", label, title, chip, element("ol", {}, ...near));
    column.classList.toggle("current", map === current);
    return column;
  });
  at("columns").replaceChildren(...columns);
}

/** The card at a point; -1: none. */
function showTip(point, map, position) {
  const tip = at("tip");
  tip.hidden = point < 0;
  if (point < 0) return;
  const words = element("p", { dir: "auto" }, ...marked(data.texts[point], endsOf(map, point)));
  const facet = element("small", {}, seen(facetName(map.facets[map.facet[point]], 5)));
  tip.replaceChildren(words, facet);
  const box = tip.parentElement;
  const [x, y] = position;
  tip.style.left = `${Math.max(8, Math.min(x + 12, box.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 12 + tip.offsetHeight > box.clientHeight ? Math.max(8, y - tip.offsetHeight - 12) : y + 12}px`;
}
