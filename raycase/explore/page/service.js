"use strict";
// The page of a service asks it for texts, for maps under any condition, and for the words at which one looks.

const MOST_MAPS = 24;
let token = null; // that the service may need; it is kept here alone
let entered = null; // resolves when the reader has entered the token
let last = Promise.resolve(true); // the map that is made, and those that wait for it

/** What the service answers. Throws an Error with what it says. */
async function ask(route, body) {
  for (;;) {
    const headers = { "Content-Type": "application/json" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const request = { method: "POST", headers, body: JSON.stringify(body), credentials: "omit" };
    const answer = await fetch(`explore/${route}`, request).catch(() => {
      throw new Error("the service does not answer");
    });
    if (answer.status === 401) {
      await enterToken();
      continue;
    }
    const said = await answer.json().catch(() => null);
    if (answer.ok && said) return said;
    throw new Error(said?.error?.message ?? `the service answered with status ${answer.status}`);
  }
}

/** Ask the reader for the token, once for all that needs it. */
function enterToken() {
  entered ??= new Promise((done) => {
    at("door").firstElementChild.onsubmit = (event) => {
      event.preventDefault();
      token = at("token").value.trim();
      at("token").value = "";
      at("door").close();
      entered = null;
      done();
    };
    at("door").oncancel = (event) => event.preventDefault(); // without it there is nothing to see
    at("door").showModal();
  });
  return entered;
}

function tell(words, failed = false) {
  at("asking").hidden = !words;
  at("asking").textContent = words;
  at("asking").classList.toggle("failed", failed);
}

/** Some work, with the seconds that it takes; what goes wrong is told, and the result is undefined. */
async function timed(words, work) {
  const began = Date.now();
  const tick = () => tell(`${words} … ${Math.round((Date.now() - began) / 1000)} s`);
  tick();
  const clock = setInterval(tick, 1000);
  try {
    const result = await work();
    tell("");
    return result;
  } catch (error) {
    tell(seen(error.message), true);
  } finally {
    clearInterval(clock);
  }
}

service = {
  /** Fill a map, after those that were asked for before; says whether it is there. */
  load(map) {
    const condition = map.condition || null;
    const named = condition ? `under ${seen(map.name)}` : "without a condition";
    const work = async () => fill(map, await ask("map", { version: data.version, condition }));
    const words = `Placing ${count.toLocaleString("en")} texts ${named}`;
    last = last.then(async () => Boolean(map.x || (await timed(words, work))));
    return last;
  },

  /** Words of these texts at which a map's condition looks; says whether there are new ones. */
  async mark(map, points) {
    if (!data.weighs || !map.condition) return false;
    map.words ??= [];
    const rows = [...new Set(points)].filter((point) => !map.words[point]);
    if (!rows.length) return false;
    for (const row of rows) map.words[row] = []; // they are asked for once
    try {
      const { words } = await ask("words", { version: data.version, condition: map.condition, rows });
      rows.forEach((row, i) => (map.words[row] = words[i]));
      return true;
    } catch (error) {
      for (const row of rows) delete map.words[row];
      tell(seen(error.message), true);
      return false;
    }
  },
};

/** The number of the map under a condition, a new one if there is room; -1: there is none. */
function placeOf(condition) {
  const known = maps.findIndex((map) => map.condition === condition);
  if (known >= 0) return known;
  if (maps.length < MOST_MAPS) return offer(emptyMap(condition));
  tell(`A page has ${MOST_MAPS} maps at most; load it again for others`, true);
  return -1;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const condition = at("condition").value.trim();
  const place = condition ? placeOf(condition) : -1;
  if (place < 0) return;
  at("condition").value = "";
  show(place);
});

/** Nothing can be used before there is something. */
function shut(closed) {
  document.querySelector("main").inert = at("share").disabled = closed;
}

async function enter() {
  shut(true);
  const rows = await timed("Reading the index", () => ask("rows", {}));
  if (!rows) return;
  hold(rows);
  rows.conditions.map(emptyMap).forEach(offer);
  at("ask").hidden = !rows.any;
  if (!(await service.load(maps[0]))) return;
  const fragment = new URLSearchParams(location.hash.slice(1));
  for (const condition of ["condition", "colors"].map((key) => fragment.get(key)).filter(Boolean)) {
    const known = rows.any || maps.some((map) => map.condition === condition);
    const place = known ? placeOf(condition) : -1;
    if (place >= 0 && !(await service.load(maps[place]))) history.replaceState(null, "", location.pathname);
  }
  await begin();
  shut(false);
}

enter();
