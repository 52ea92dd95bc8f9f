"use strict";
// The points, drawn by WebGL; the labels over them; mice, wheels and fingers on them.

// Okabe and Ito's colors, which the color-blind tell apart, with grey for their black
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#7f7f7f"];
const FAINT = COLORS.length; // the color of points that are not active
const [MOVE_MS, ZOOM_MS] = [900, 250];
const [NEAREST, FARTHEST] = [0.02, 2]; // half the height of what is seen
const REACH = 6; // pixels from a point that is still pointed at
const CORNERS = `#version 300 es
  layout(location = 0) in vec2 from;
  layout(location = 1) in vec2 to;
  layout(location = 2) in float category;
  uniform vec4 colors[${FAINT + 1}], over;
  uniform vec3 view;
  uniform float aspect, share, size;
  out vec4 tint;
  void main() {
    gl_Position = vec4((2.0 * mix(from, to, share) - 1.0 - view.xy) / view.z * vec2(aspect, 1), 0, 1);
    gl_PointSize = size;
    tint = over.a > 0.0 ? over : colors[int(category)];
  }`;
const PIXELS = `#version 300 es
  precision highp float;
  in vec4 tint;
  uniform float size;
  out vec4 color;
  void main() {
    color = tint * clamp(0.5 + size * (0.5 - length(gl_PointCoord - 0.5)), 0.0, 1.0);
  }`;

const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** The color of a facet. */
function colorOf(facet) {
  return COLORS[facet % COLORS.length];
}

/** A color as WebGL blends it. */
function blended(color, opacity) {
  return [1, 3, 5].map((i) => (parseInt(color.slice(i, i + 2), 16) / 255) * opacity).concat(opacity);
}

/** A plot by a context of a canvas; `on.hover`, `on.select` and `on.view` are called with what happens. */
function createPlot(gl, labels, on) {
  const { canvas } = gl;
  const [box, least] = [canvas.parentElement, Math.max(2, Math.min(7, 5 * Math.sqrt(4000 / count)))];
  let [from, to, share] = [null, null, 1]; // positions, and the share of the way that is behind the points
  let category = new Uint8Array(count); // the number of each point's color
  let order = new Uint32Array(count); // in which points are drawn
  let anchors = []; // a point and the words of each label
  let [selected, hovered, moving, flying, frame] = [-1, -1, 0, 0, 0];
  let view = [0, 0, 1]; // what is in the middle, and half the height of what is seen
  let seenFrom = 0; // the distance from which all was last seen
  let uniforms, buffers;

  /** The distance from which the whole map is seen. */
  const home = () => 1.06 * Math.max(1, canvas.clientHeight / canvas.clientWidth);
  const along = (i) => ((from[i] + share * (to[i] - from[i])) / 65535) * 2 - 1;

  /** Buffers and program, also of a context that was lost. */
  function setUp() {
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, CORNERS], [gl.FRAGMENT_SHADER, PIXELS]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    const names = ["colors", "over", "view", "aspect", "share", "size"];
    uniforms = Object.fromEntries(names.map((name) => [name, gl.getUniformLocation(program, name)]));
    buffers = [0, 1, 2, 3].map(() => gl.createBuffer());
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    if (to) [from, to, category].forEach(upload), upload(order, 3);
    paint();
  }

  function upload(values, i) {
    const target = i === 3 ? gl.ELEMENT_ARRAY_BUFFER : gl.ARRAY_BUFFER;
    gl.bindBuffer(target, buffers[i]);
    gl.bufferData(target, values, gl.STATIC_DRAW);
    if (i === 3) return;
    gl.enableVertexAttribArray(i);
    if (i === 2) gl.vertexAttribPointer(2, 1, gl.UNSIGNED_BYTE, false, 0, 0);
    else gl.vertexAttribPointer(i, 2, gl.UNSIGNED_SHORT, true, 0, 0);
  }

  function paint() {
    const faint = blended(dark.matches ? "#8b949e" : "#6e7781", 0.12);
    gl.uniform4fv(uniforms.colors, [...COLORS.flatMap((color) => blended(color, 0.8)), ...faint]);
    draw();
  }

  /** Draw at the next frame. */
  function draw() {
    frame ||= requestAnimationFrame(render);
  }

  function render() {
    frame = 0;
    if (!to || gl.isContextLost()) return;
    const scale = devicePixelRatio * (Math.asinh(Math.max(1, 1 / view[2])) / Math.asinh(1));
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform3fv(uniforms.view, view);
    gl.uniform1f(uniforms.aspect, canvas.height / canvas.width);
    gl.uniform1f(uniforms.share, share);
    gl.uniform1f(uniforms.size, least * scale);
    gl.uniform4f(uniforms.over, 0, 0, 0, 0);
    gl.drawElements(gl.POINTS, count, gl.UNSIGNED_INT, 0);
    const [ink, paper] = (dark.matches ? ["#ffffff", "#0d1117"] : ["#000000", "#ffffff"]).map((c) => blended(c, 1));
    for (const point of [selected, hovered].filter((each) => each >= 0)) {
      for (const [more, color] of [[10, ink], [6, paper], [2, ink]]) {
        gl.uniform4fv(uniforms.over, color);
        gl.uniform1f(uniforms.size, least * scale + more * devicePixelRatio);
        gl.drawArrays(gl.POINTS, point, 1);
      }
    }
    if (share === 1) placeLabels();
  }

  /** Call with shares from 0 to 1 for so long, or until the answer is false. Resolves at the end. */
  function animate(milliseconds, step) {
    const began = performance.now();
    return new Promise((done) => {
      (function tick() {
        const passed = milliseconds ? Math.min(1, (performance.now() - began) / milliseconds) : 1;
        const more = step(passed ** 2 * (3 - 2 * passed)) && passed < 1;
        draw();
        requestAnimationFrame(more ? tick : done);
      })();
    });
  }

  function placeLabels() {
    const taken = [];
    for (const { label, point } of anchors) {
      const [width, height] = [label.offsetWidth, label.offsetHeight];
      const [across, y] = plot.position(point);
      const inView = across >= 0 && across <= canvas.clientWidth;
      const x = inView ? Math.max(width / 2, Math.min(across, canvas.clientWidth - width / 2)) : across;
      label.style.transform = `translate(${x}px, ${y}px) translate(-50%, -50%)`;
      const meets = (t) => Math.abs(t.x - x) < (t.width + width) / 2 && Math.abs(t.y - y) < (t.height + height) / 2;
      const over = taken.some(meets);
      label.classList.toggle("hidden", over);
      if (!over) taken.push({ x, y, width, height });
    }
  }

  /** The point nearest to a place on the canvas, one that is not faint if there is one; -1: none. */
  function pick({ offsetX, offsetY }) {
    const unit = canvas.clientHeight / 2 / view[2];
    const [x, y] = [view[0] + (offsetX - canvas.clientWidth / 2) / unit, view[1] + view[2] - offsetY / unit];
    const reach = (Math.max(least, REACH) / unit) ** 2;
    let [best, nearest] = [-1, 2 * reach];
    for (let i = 0; i < count; i++) {
      const far = (along(2 * i) - x) ** 2 + (along(2 * i + 1) - y) ** 2 + (category[i] === FAINT ? reach : 0);
      if (far < nearest) [best, nearest] = [i, far];
    }
    return best;
  }

  const plot = {
    /** The positions of a map; points that are drawn move there. Resolves when they are there. */
    async move(map) {
      const turn = ++moving;
      const time = to && !still.matches ? MOVE_MS : 0;
      from = !to ? map.positions : share < 1 ? to.map((end, i) => from[i] + share * (end - from[i])) : to;
      to = map.positions;
      [from, to].forEach(upload);
      labels.classList.add("hidden");
      await animate(time, (passed) => turn === moving && ((share = passed), true));
      if (turn === moving) labels.classList.remove("hidden"); // no other map was chosen meanwhile
    },
    /** Colors of all points by their facets; those that are not active are faint, and under the others. */
    color(facet, active) {
      category = facet.map((each, i) => (active[i] ? each % COLORS.length : FAINT));
      let next = 0;
      for (const first of [true, false]) {
        for (let i = 0; i < count; i++) if ((category[i] === FAINT) === first) order[next++] = i;
      }
      upload(category, 2);
      upload(order, 3);
      draw();
    },
    /** Words over the points that carry them: [point, words]. */
    label(words) {
      labels.replaceChildren();
      anchors = words.map(([point, text]) => ({ point, label: element("span", {}, seen(text)) }));
      labels.append(...anchors.map(({ label }) => label));
      draw();
    },
    select: (point) => ((selected = point), draw()),
    hover: (point) => ((hovered = point), draw()),
    position(point) {
      const unit = canvas.clientHeight / 2 / view[2];
      const [x, y] = [along(2 * point) - view[0], along(2 * point + 1) - view[1]];
      return [canvas.clientWidth / 2 + x * unit, canvas.clientHeight / 2 - y * unit];
    },
    view: () => view,
    look([x, y, distance], transition = false) {
      const [turn, start] = [++flying, view];
      const next = [x, y, Math.min(FARTHEST, Math.max(NEAREST, distance))];
      const step = (passed) => turn === flying && ((view = next.map((end, i) => start[i] + passed * (end - start[i]))), true);
      on.view();
      return animate(transition && !still.matches ? ZOOM_MS : 0, step);
    },
    goHome: (transition = true) => plot.look([0, 0, (seenFrom = home())], transition),
    /** Move by a share of the view, and change its distance by a factor. */
    go: (right, up, factor = 1) => plot.look([view[0] + right * view[2], view[1] + up * view[2], view[2] * factor]),
    redraw: async () => render(),
  };

  const held = new Map(); // places of the mouse and of fingers that are down
  let tapped = false; // whether one is down that has not moved
  const middle = () => {
    const all = [...held.values()];
    const [x, y] = [0, 1].map((axis) => all.reduce((sum, each) => sum + each[axis], 0) / all.length);
    return { x, y, apart: all.length > 1 ? Math.hypot(all[0][0] - all[1][0], all[0][1] - all[1][1]) : 1 };
  };
  function pointAt(point) {
    plot.hover(point < 0 || category[point] === FAINT ? -1 : point);
    on.hover(hovered);
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, [event.clientX, event.clientY]);
    tapped = held.size === 1;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held.has(event.pointerId)) return event.pointerType === "mouse" && pointAt(pick(event));
    const before = middle();
    const [x, y] = held.get(event.pointerId);
    tapped &&= Math.hypot(event.clientX - x, event.clientY - y) < 4;
    if (tapped) return;
    held.set(event.pointerId, [event.clientX, event.clientY]);
    const [after, unit] = [middle(), canvas.clientHeight / 2];
    plot.go((before.x - after.x) / unit, (after.y - before.y) / unit, before.apart / after.apart);
  });
  canvas.addEventListener("pointerup", (event) => tapped && pick(event) >= 0 && on.select(pick(event)));
  canvas.addEventListener("pointerleave", () => pointAt(-1));
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => held.delete(event.pointerId));
  canvas.addEventListener("dblclick", (event) => pick(event) < 0 && on.select(-1));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const turned = Math.exp(0.0015 * event.deltaY * (event.deltaMode ? 20 : 1)); // lines, or pixels
    const distance = Math.min(FARTHEST, Math.max(NEAREST, view[2] * turned));
    const [closer, unit] = [view[2] - distance, canvas.clientHeight / 2]; // what is under the mouse stays there
    const [x, y] = [event.offsetX - canvas.clientWidth / 2, unit - event.offsetY];
    plot.look([view[0] + (x / unit) * closer, view[1] + (y / unit) * closer, distance]);
  });
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", setUp);
  dark.addEventListener("change", paint);
  new ResizeObserver(() => {
    const isHome = Math.hypot(view[0], view[1], view[2] - seenFrom) < 1e-3;
    const [width, height] = [box.clientWidth, box.clientHeight];
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    if (isHome) plot.goHome(false);
    render(); // a canvas of another size is empty
  }).observe(box);
  setUp();
  return plot;
}
