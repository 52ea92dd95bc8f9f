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

/** The point of a facet that is nearest to the middle of its points. */
function anchor(map, facet) {
  const points = [...map.facet.keys()].filter((point) => map.facet[point] === facet);
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const [x, y] = [map.x, map.y].map((axis) => median(points.map((point) => axis[point])));
  const far = (point) => Math.hypot(map.x[point] - x, map.y[point] - y);
  return points.reduce((best, point) => (far(point) < far(best) ? point : best));
}

/** Colors, legend, labels and lists as the state has them. */
async function refresh() {
  const points = Array.from({ length: count }, (_, i) => i);
  const active = points.map(isActive);
  const own = colored() === current();
  plot.label(own ? current().facets.map((facet, i) => [anchor(current(), i), facetName(facet, 2)]) : []);
  showLegend(colored(), state.facets, toggle);
  showHits(matches && points.filter((point) => active[point]), current(), choose, peek);
  details();
  await plot.color(colored().facet, active);
  plot.select(state.point);
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
  await refresh();
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
  refresh().then(remember);
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
function offer(map) {
  const i = maps.push(map) - 1;
  const input = element("input", { type: "radio", name: "map", value: i, onchange: () => show(i) });
  at("conditions").append(element("label", { dir: "auto" }, input, element("span", {}, seen(map.name))));
  at("color").append(element("option", { value: i }, `by ${seen(map.name)}`));
}

at("color").append(element("option", { value: -1 }, "by the map's own facets"));
at("color").addEventListener("change", () => {
  state.color = Number(at("color").value);
  state.facets.clear();
  refresh().then(remember);
});
at("all").addEventListener("click", () => (state.facets.clear(), refresh().then(remember)));
at("close").addEventListener("click", () => choose(-1));
at("search").addEventListener(
  "input",
  debounced(async () => {
    state.words = at("search").value;
    matches = search(state.words);
    await refresh();
    remember();
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
  const far = (point) => Math.hypot(current().x[point] - x, current().y[point] - y);
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

document.addEventListener("keydown", (event) => {
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
});

// ----------------------------------------------------------------------------------------------------------- begin

/** Show what is held. */
async function begin() {
  state = fromFragment(location.hash);
  matches = search(state.words);
  at("title").textContent = seen(data.title);
  at("summary").textContent = seen(data.summary);
  at("color").value = state.color;
  at("search").value = state.words;
  checkShown();
  name();
  at("failure").hidden = Boolean(document.createElement("canvas").getContext("webgl"));
  plot = createPlot(canvas, at("labels"), { hover, select: choose, view: debounced(remember, 200) });
  addFingers(canvas, plot);
  const { view } = state; // that is remembered anew while the points are drawn
  await plot.move(current());
  await refresh();
  await (view ? plot.look(view) : plot.goHome(false));
  document.documentElement.dataset.ready = "true";
  window.addEventListener("hashchange", () => location.reload());
}

hold(JSON.parse(at("data").textContent));
for (const map of data.maps) offer(read(map));
begin();
