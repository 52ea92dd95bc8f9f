"use strict";
// The points, drawn by regl-scatterplot; the labels over them; hands and fingers on them.

// Okabe and Ito's colors, which the color-blind tell apart, with grey for their black
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#7f7f7f"];
const MOVE_MS = 900;
const [NEAREST, FARTHEST] = [0.02, 2]; // distances of the camera

const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** The color of a facet. */
function colorOf(facet) {
  return COLORS[facet % COLORS.length];
}

/** A plot on a canvas; `on.hover`, `on.select` and `on.view` are called with what happens. */
function createPlot(canvas, labels, on) {
  const size = Math.max(2, Math.min(7, 5 * Math.sqrt(4000 / count)));
  const scatterplot = createScatterplot({
    canvas,
    width: canvas.parentElement.clientWidth,
    height: canvas.parentElement.clientHeight,
    actionKeyMap: {},
    colorBy: "valueA",
    opacityBy: "valueA",
    sizeBy: "valueA",
    pointSizeSelected: 4,
    pointOutlineWidth: 2,
    opacityInactiveMax: 1,
    opacityInactiveScale: 1,
    spatialIndexUseWorker: false,
  });
  let map = null; // that is drawn
  let category = new Array(count).fill(0); // the number of a point's color; that of the faint ones is the last
  let anchors = []; // a point and the words of each label
  let moving = 0;
  let drawn = Promise.resolve(); // when all that was asked for is drawn
  let seenFrom = 0; // the distance from which all was last seen

  /** The distance from which the whole map is seen. */
  const home = () => 1.06 * Math.max(1, canvas.clientHeight / canvas.clientWidth);

  function paint() {
    const faint = dark.matches ? "#8b949e" : "#6e7781";
    scatterplot.set({
      pointColor: [...COLORS, faint],
      pointColorActive: dark.matches ? "#ffffff" : "#000000",
      pointColorHover: dark.matches ? "#ffffff" : "#000000",
      backgroundColor: dark.matches ? "#0d1117" : "#ffffff",
      opacity: [...COLORS.map(() => 0.8), 0.12],
      pointSize: [...COLORS.map(() => size), size * 0.8],
    });
  }

  /** Draw the points as they then are when what is drawn now is done: the library ignores a call before that. */
  function draw(options) {
    const how = { zDataType: "categorical", ...options };
    const next = () => scatterplot.draw({ x: map.x, y: map.y, valueA: category }, how);
    drawn = drawn.then(next, next);
    return drawn;
  }

  function placeLabels() {
    const taken = [];
    for (const { label, point } of anchors) {
      const [width, height] = [label.offsetWidth, label.offsetHeight];
      const [across, y] = scatterplot.getScreenPosition(point);
      const inView = across >= 0 && across <= canvas.clientWidth;
      const x = inView ? Math.max(width / 2, Math.min(across, canvas.clientWidth - width / 2)) : across;
      label.style.transform = `translate(${x}px, ${y}px) translate(-50%, -50%)`;
      const meets = (t) => Math.abs(t.x - x) < (t.width + width) / 2 && Math.abs(t.y - y) < (t.height + height) / 2;
      const over = taken.some(meets);
      label.classList.toggle("hidden", over);
      if (!over) taken.push({ x, y, width, height });
    }
  }

  scatterplot.subscribe("pointOver", (point) => on.hover(category[point] < COLORS.length ? point : -1));
  scatterplot.subscribe("pointOut", () => on.hover(-1));
  scatterplot.subscribe("select", ({ points }) => on.select(points[0]));
  scatterplot.subscribe("deselect", () => on.select(-1));
  scatterplot.subscribe("view", () => (placeLabels(), on.view()));
  dark.addEventListener("change", paint);
  new ResizeObserver(() => {
    const [x, y, distance] = plot.view();
    const [width, height] = [canvas.parentElement.clientWidth, canvas.parentElement.clientHeight];
    scatterplot.get("renderer").resize(width, height); // its own guess is that of the window, at most the screen's
    scatterplot.set({ width, height });
    if (Math.hypot(x, y, distance - seenFrom) < 1e-3) plot.goHome(false);
    scatterplot.subscribe("draw", placeLabels, 1);
  }).observe(canvas.parentElement);
  paint();

  const plot = {
    /** The positions of a map; points that are drawn move there. Resolves when they are there. */
    async move(next) {
      const turn = ++moving;
      const transition = map !== null && !still.matches;
      map = next;
      labels.classList.add("hidden");
      await draw({ transition, transitionDuration: MOVE_MS, transitionEasing: "cubicInOut" });
      if (turn !== moving) return; // another map was chosen meanwhile
      labels.classList.remove("hidden");
      placeLabels();
    },
    /** Colors of all points by their facets; those that are not active are faint, and under the others. */
    async color(facet, active) {
      category = Array.from(facet, (f, i) => (active[i] ? f % COLORS.length : COLORS.length));
      const order = Array.from(category.keys()).sort((a, b) => category[b] - category[a] || a - b);
      scatterplot.set({ pointOrder: order });
      await draw();
      placeLabels();
    },
    /** Words over the points that carry them: [point, words]. */
    label(words) {
      labels.replaceChildren();
      anchors = words.map(([point, text]) => ({ point, label: element("span", {}, seen(text)) }));
      labels.append(...anchors.map(({ label }) => label));
    },
    select(point) {
      if (point < 0) scatterplot.deselect({ preventEvent: true });
      else scatterplot.select([point], { preventEvent: true });
    },
    hover: (point) => scatterplot.hover(point < 0 ? undefined : point, { preventEvent: true }),
    position: (point) => scatterplot.getScreenPosition(point),
    view: () => [...scatterplot.get("cameraTarget").slice(0, 2), [scatterplot.get("cameraDistance")].flat()[0]],
    look([x, y, distance], transition = false) {
      const near = Math.min(FARTHEST, Math.max(NEAREST, distance));
      const moves = { transition: transition && !still.matches, transitionDuration: 250 };
      return scatterplot.zoomToLocation([x, y], near, moves);
    },
    goHome: (transition = true) => plot.look([0, 0, (seenFrom = home())], transition),
    /** Move by a share of the view, and change its distance by a factor. */
    go(right, up, factor = 1) {
      const [x, y, distance] = plot.view();
      return plot.look([x + right * distance, y + up * distance, distance * factor]);
    },
    redraw: () => new Promise((done) => (scatterplot.subscribe("draw", done, 1), scatterplot.redraw())),
    scatterplot,
  };
  return plot;
}

/** One finger moves the plot, two zoom it: the library knows mice alone. */
function addFingers(canvas, plot) {
  const fingers = new Map();
  const middle = () => {
    const all = [...fingers.values()];
    const [x, y] = [0, 1].map((axis) => all.reduce((sum, finger) => sum + finger[axis], 0) / all.length);
    return { x, y, apart: all.length > 1 ? Math.hypot(all[0][0] - all[1][0], all[0][1] - all[1][1]) : 1 };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") fingers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    const before = middle();
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    const after = middle();
    const unit = canvas.clientHeight / 2;
    plot.go((before.x - after.x) / unit, (after.y - before.y) / unit, before.apart / after.apart);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
    canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
  }
}
