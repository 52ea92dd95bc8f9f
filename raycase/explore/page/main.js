"use strict";
// The state of the page, and what changes it.

let state, plot, matches;
const canvas = at("canvas");
const addressed = location.protocol !== "about:"; // the frame of a notebook is at no address

const colored = () => maps[state.color < 0 ? state.map : state.color];
const current = () => maps[state.map];

function debounced(work, milliseconds) {
  let timer;
  return () => (clearTimeout(timer), (timer = setTimeout(work, milliseconds)));
}

/** Put what is seen into the address. */
function remember() {
  state.view = plot.view();
  if (addressed) history.replaceState(null, "", toFragment(state));
}

function say(words) {
  at("status").textContent = words;
}

function hover(point) {
  showTip(point, current(), point < 0 ? null : plot.position(point));
}

/** The selected text and its neighbours. */
function details() {
  showDetails(state.point, current(), choose, peek);
}

/** Show where a text is that is pointed at in a list. */
function peek(point) {
  plot.hover(point);
}

function isActive(point) {
  return (!state.facets.size || state.facets.has(colored().facet[point])) && (!matches || matches[point]);
}

/** Colors, legend, labels and lists as the state has them. */
function refresh() {
  const active = colored().facet.map((_, point) => isActive(point));
  const own = colored() === current();
  plot.color(colored().facet, active);
  plot.label(own ? current().facets.map((facet) => [facet.point, facetName(facet, 2)]) : []);
  plot.select(state.point);
  showLegend(colored(), state.facets, toggle);
  showHits(matches && [...active.keys()].filter((point) => active[point]), current(), choose, peek);
  details();
}

/** Show another map. */
async function show(map) {
  if (map === state.map) return;
  document.documentElement.dataset.moving = "true";
  if (state.color < 0) state.facets.clear();
  state.map = map;
  hover(-1);
  checkShown();
  name();
  say(`${count.toLocaleString("en")} texts under ${seen(current().name)}`);
  refresh();
  await plot.move(current());
  remember();
  if (state.map === map) delete document.documentElement.dataset.moving;
}

function choose(point) {
  if (point === state.point) return;
  state.point = point;
  plot.select(point);
  details();
  at("columns").scrollTop = 0;
  say(point < 0 ? "Nothing is selected" : `Selected: ${seen(data.texts[point])}`);
  remember();
}

function toggle(facet) {
  if (!state.facets.delete(facet)) state.facets.add(facet);
  refresh(), remember();
  at("legend").children[facet].firstChild.focus();
}

/** The map that is shown is the one that is checked. */
function checkShown() {
  for (const input of at("conditions").querySelectorAll("input")) input.checked = Number(input.value) === state.map;
}

function name() {
  at("map").setAttribute("aria-label", `Map of ${count.toLocaleString("en")} texts under ${seen(current().name)}`);
}

// -------------------------------------------------------------------------------------------------------- controls

/** A way to choose a map, and its facets as colors. */
function offer(map, i) {
  const input = element("input", { type: "radio", name: "map", value: i, onchange: () => show(i) });
  at("conditions").append(element("label", { dir: "auto" }, input, element("span", {}, seen(map.name))));
  at("color").append(element("option", { value: i }, `by ${seen(map.name)}`));
}

at("color").append(element("option", { value: -1 }, "by the map's own facets"));
at("color").addEventListener("change", () => {
  state.color = Number(at("color").value);
  state.facets.clear();
  refresh(), remember();
});
at("all").addEventListener("click", () => (state.facets.clear(), refresh(), remember()));
at("close").addEventListener("click", () => choose(-1));
at("search").addEventListener(
  "input",
  debounced(() => {
    state.words = at("search").value;
    matches = search(state.words);
    refresh(), remember();
    if (matches) say(at("count").textContent);
  }, 150),
);
at("share").hidden = !addressed;
at("share").addEventListener("click", async () => {
  remember();
  const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  say(copied ? "The link is copied" : "The link is in the address bar");
  at("share").textContent = copied ? "Copied" : "See the address bar";
  setTimeout(() => (at("share").textContent = "Copy link"), 2000);
});
for (const button of at("zoom").children) {
  const factor = Number(button.dataset.zoom);
  button.addEventListener("click", () => (factor ? plot.go(0, 0, factor) : plot.goHome()));
}

/** The active point nearest to the middle of the view. */
function middle() {
  const [x, y] = plot.view();
  const along = (i) => (current().positions[i] / 65535) * 2 - 1;
  const far = (point) => Math.hypot(along(2 * point) - x, along(2 * point + 1) - y);
  let best = -1;
  for (let point = 0; point < count; point++) {
    if (isActive(point) && (best < 0 || far(point) < far(best))) best = point;
  }
  return best;
}

const KEYS = {
  ArrowLeft: () => plot.go(-0.2, 0),
  ArrowRight: () => plot.go(0.2, 0),
  ArrowUp: () => plot.go(0, 0.2),
  ArrowDown: () => plot.go(0, -0.2),
  "+": () => plot.go(0, 0, 0.8),
  "=": () => plot.go(0, 0, 0.8),
  "-": () => plot.go(0, 0, 1.25),
  0: () => plot.goHome(),
  Enter: () => choose(middle()),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement && event.target.type !== "radio";
  if (event.key === "Escape") {
    choose(-1);
  } else if (!typing && event.key === "/") {
    event.preventDefault();
    at("search").focus();
  } else if (!typing && /^[1-9]$/.test(event.key) && event.key <= maps.length) {
    show(Number(event.key) - 1);
  } else if (event.target === at("map") && KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

// ----------------------------------------------------------------------------------------------------------- begin

/** Show what is held: first the points, then their texts. */
async function begin() {
  hold(JSON.parse(at("data").textContent));
  at("data").remove();
  maps.forEach(offer);
  state = fromFragment(location.hash);
  at("title").textContent = seen(data.title);
  at("summary").textContent = seen(data.summary);
  at("color").value = state.color;
  at("search").value = state.words;
  checkShown();
  name();
  const gl = canvas.getContext("webgl2", { antialias: false });
  at("failure").hidden = Boolean(gl);
  for (const map of maps) await unpack(map, "positions", "facet");
  plot = createPlot(gl, at("labels"), { hover, select: choose, view: debounced(remember, 200) });
  plot.color(colored().facet, colored().facet.map(() => 1));
  await Promise.all([plot.move(current()), state.view ? plot.look(state.view) : plot.goHome(false)]);
  await unpack(data, "sampled", "texts", "ids");
  for (const map of maps) await unpack(map, "rows", "cosines", "starts", "ends");
  matches = search(state.words);
  refresh();
  document.body.inert = false;
  document.addEventListener("keydown", onKey);
  document.documentElement.dataset.ready = "true";
  window.addEventListener("hashchange", () => location.reload());
}

begin();
