// The page: what is looked at and what is changed. Its state stands in the address, so that a link restores it.

import { DEPTH, matrixFigure } from "../../report/charts/cells.js";
import { html } from "../../report/charts/dom.js";
import { against, figureOf } from "./between.js";
import { changeTools } from "./changes.js";
import { Failed, Lost, askSession } from "./client.js";
import { COLUMNS } from "./reading.js";
import { download, page, png, svgText } from "./save.js";
import { Side } from "./side.js";

const MOST_SIDES = 3;
const POLL = 2000; // milliseconds between looks at a run that trains
const stored = document.getElementById("saved");
const saved = stored && JSON.parse(stored.textContent);

let session = null;
let sides = [], active = null;
let past = [], future = []; // [spec, changes] each: for undo and redo
let telling = null; // the site to begin with: of this text one that has something to say
// position: null is the last; site: null is none chosen; source: null is none;
// target: { id, tokens }, null is the token that follows.
const state = { text: "", position: null, site: null, source: null, target: null, metric: "weight", column: "weight" };
const current = () => active ?? sides[0];
const modelOf = (id) => session.models.find((model) => model.id === id);

// ---- the parts of the page ----

function button(text, act, properties = {}) {
  const made = html("button", { type: "button", ...properties }, text);
  made.addEventListener("click", act);
  return made;
}
function select(ariaLabel, options, act) {
  const made = html("select", { ariaLabel }, ...options.map(([value, text]) => html("option", { value }, text)));
  made.addEventListener("change", () => act(made.value));
  return made;
}
const main = document.getElementById("look");
const banner = html("p", { id: "banner", role: "alert", hidden: true });
const said = html("p", { id: "said", role: "status" });
const text = html("textarea", { id: "text", rows: 2, spellcheck: false });
const going = button("Continue the text", carryOn, { id: "continue" });
const keep = button("Keep it", () => current().keepDrawn(), { id: "keep", hidden: true,
  title: "make what was generated a part of the text" });
const temperature = html("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0.8, id: "temperature" });
const beside = select("Put beside it", [["", "put beside it …"], ["model", "another model"],
  ["prompt", "another prompt"], ["unchanged", "the same, unchanged"]], putBeside);
const metric = select("Lines and matrix show", [["weight", "weight"], ["size", "weight × |v|"]],
  (value) => { state.metric = value; redraw(); });
const column = select("Beside the path", COLUMNS, (value) => { state.column = value; redraw(); });
const columnChoice = html("label", {}, "beside the path: ", column);
const measuring = button("Measure removal", measure, { id: "measure", className: "live",
  title: "what taking out each source of this site costs, against a random vector as large" });
const tools = html("fieldset", { className: "tool-box live" }, html("legend", {}, "Change what is read"));
const room = html("div", { className: "sides" });
const between = html("section", { className: "between", hidden: true });

main.append(
  html("header", {}, html("h1", {}, "attnres look"), html("div", { className: "tools" },
    button("Save page", () => save("html"), { className: "live" }), button("SVG", () => save("svg")),
    button("PNG", () => save("png")), button("Copy link", copyLink, { className: "live" }))),
  banner, said,
  html("section", { className: "writing live" }, html("label", { htmlFor: "text" }, "Text"), text),
  html("div", { className: "bar" },
    html("div", { className: "tools live" }, going, keep, html("label", {}, "temperature ", temperature), beside),
    html("div", { className: "tools" }, html("label", {}, "lines and matrix: ", metric), columnChoice, measuring)),
  room, tools, between,
  html("p", { className: "keys live" }, "Keys. Tokens: ← → Home End. Depth picture: ↑ ↓ sites, ← → " +
    "sources, [ ] tokens, m mute, o switch off, u undo."));

const app = {
  state, saved: Boolean(saved), session: () => session, modelOf, text: () => state.text, sides: () => sides,
  active: current, shared, lost, found, renew, write, key: pressed, remove: removeSide,
  act(side) {
    if (active === side) return;
    active = side;
    for (const each of sides) each.root.classList.toggle("active", sides.length > 1 && each === side);
    changing.update();
  },
  asked(side) {
    forget(side.spec);
    changing.update();
  },
  changed() { redraw(false); },
  pictured(side) { telling ??= side.read()?.telling() ?? null; },
  telling: () => telling,
  drawMatrix(parent, model, matrix) {
    const title = state.metric === "size" ? "Weight × |v|, all sites" : "Weights, all sites";
    matrixFigure(parent, figureOf(model, title), matrix, DEPTH, shared);
  },
};

// Something was chosen that all sides share: a token, a site, a source, a target.
function shared(chosen) {
  const moved = "position" in chosen && chosen.position !== state.position;
  if (moved) state.target = null;
  Object.assign(state, chosen);
  redraw();
  if (moved || "target" in chosen) sides.forEach((side) => side.explain());
}
function redraw(all = true) {
  if (all) sides.forEach((side) => side.render());
  changing.update();
  keep.hidden = !current().keepable();
  columnChoice.hidden = sides.every((side) => side.isWide());
  against(between, sides, state.metric, shared);
  remember();
}
function measure() {
  column.value = state.column = "effect";
  sides.forEach((side) => side.measure());
}
function pressed(event) {
  if (saved || event.ctrlKey || event.metaKey || event.altKey) return;
  const { position } = current().at(), last = (current().picture?.tokens.length ?? 0) - 1;
  const act = { m: changing.mute, o: changing.switchOff, u: undo,
    "[": () => shared({ position: Math.max(0, position - 1) }),
    "]": () => shared({ position: Math.min(last, position + 1) }) }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// ---- changes, and the way back ----

const changing = changeTools(tools, {
  side: current, say, undo, redo, canUndo: () => past.length > 0, canRedo: () => future.length > 0,
  change(changes) {
    const { spec } = current();
    past.push([spec, spec.changes]);
    future = [];
    apply(spec, changes);
  },
});
function step(from, to) {
  const last = from.pop();
  if (!last) return;
  to.push([last[0], last[0].changes]);
  apply(...last);
}
function undo() { step(past, future); }
function redo() { step(future, past); }
function apply(spec, changes) {
  spec.changes = changes;
  say("");
  changing.update();
  sides.find((side) => side.spec === spec).refresh();
}
function forget(spec) {
  past = past.filter(([other]) => other !== spec);
  future = future.filter(([other]) => other !== spec);
}
function say(line) { said.textContent = line; }

// ---- text and sides ----

text.addEventListener("input", () => write(text.value));
function write(written) {
  if (text.value !== written) text.value = written;
  Object.assign(state, { text: written, position: null, target: null });
  telling = null;
  for (const side of sides) if (side.spec.text === null) side.refreshSoon();
}
async function carryOn() {
  if (going.dataset.running) { sides.forEach((side) => side.stop()); return; }
  const heat = temperature.valueAsNumber;
  say(Number.isFinite(heat) ? "" : "Write a temperature first.");
  if (!Number.isFinite(heat)) return;
  going.dataset.running = "yes";
  going.textContent = "Stop";
  await Promise.all(sides.map((side) => side.carryOn(heat)));
  delete going.dataset.running;
  going.textContent = "Continue the text";
  keep.hidden = !current().keepable();
}
function newSide(spec) {
  const usual = { model: session.models[0].id, step: null, text: null, read: null, changes: [] };
  const side = new Side(room, app, { ...usual, ...spec });
  sides.push(side);
  arrange();
  return side;
}
function arrange() {
  room.dataset.sides = sides.length;
  beside.disabled = sides.length >= MOST_SIDES;
  main.classList.toggle("several", sides.length > 1);
}
function putBeside(kind) {
  beside.value = "";
  if (!kind) return;
  const from = current().spec, spec = { ...from, changes: [] };
  const next = session.models.indexOf(modelOf(from.model)) + 1;
  const another = { model: session.models[next % session.models.length].id, step: null, read: null };
  if (kind === "model") Object.assign(spec, another);
  if (kind === "prompt") spec.text = from.text ?? state.text;
  const side = newSide(spec);
  redraw();
  side.refresh();
}
function removeSide(side) {
  side.destroy();
  forget(side.spec);
  sides = sides.filter((other) => other !== side);
  active = null;
  arrange();
  redraw();
}

// ---- the server, whose runs may go on, and which may end ----

async function renew() {
  let known;
  try { known = await askSession(); } catch (error) {
    if (error instanceof Lost) lost();
    else if (!(error instanceof Failed)) throw error; // what failed before is what is said
    return;
  }
  found();
  if (!sides.every(({ spec }) => known.models.some(({ id }) => id === spec.model))) {
    complain("Another server answers here now: reload this page.");
    return;
  }
  const before = session;
  session = known;
  for (const side of sides) side.renewed(before.models.find(({ id }) => id === side.spec.model));
}
function complain(line) {
  banner.textContent = line;
  banner.hidden = false;
}
function lost() {
  complain("The server does not answer. What you see stays. If it ended, start attnres look again with the same " +
    "--port and --token, and reload this page.");
}
function found() { banner.hidden = true; }

// ---- the state in the address, and files ----

function remember() {
  if (saved) return;
  const kept = { ...state, sides: sides.map((side) => side.spec) };
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(kept))}`);
}
function remembered() {
  try {
    const kept = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    for (const name of Object.keys(state)) if (name in kept) state[name] = kept[name];
    return kept.sides.filter((spec) => spec?.model !== undefined).slice(0, MOST_SIDES);
  } catch { return []; }
}
async function copyLink() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied. It works as long as this server runs.");
  } catch { say("The link is the address of this page."); }
}
async function save(form) {
  const { chart } = current().drawing;
  if (form === "svg") download("depth.svg", new Blob([svgText(chart)], { type: "image/svg+xml" }));
  if (form === "png") download("depth.png", await png(chart));
  if (form !== "html") return;
  const saved = await page({ ...state, site: current().at().site }, session, sides);
  download("depth.html", new Blob([saved], { type: "text/html" }));
}

// ---- the beginning ----

async function start() {
  session = await askSession();
  setInterval(() => { if (sides.some((side) => side.asked().training)) renew(); }, POLL);
  state.text = session.text;
  const kept = remembered(), missing = kept.filter(({ model }) => !modelOf(model));
  for (const spec of kept) if (!missing.includes(spec)) newSide(spec);
  if (!sides.length) newSide({});
  show();
  const named = missing.map(({ model }) => String(model).split("@")[0]);
  if (named.length) say(`Not open here, so left out: ${named.join(", ")}.`);
  sides.forEach((side) => side.refresh());
}
function show() {
  text.value = state.text;
  metric.value = state.metric;
  column.value = state.column;
  redraw();
}
function restore() {
  session = saved.session;
  Object.assign(state, saved.state);
  for (const part of saved.sides) newSide(part.spec).restore(part);
  show();
}

let drawnAt = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth === drawnAt) return; // a phone's address bar changes the height only
  drawnAt = document.body.clientWidth;
  redraw();
});
if (saved) restore();
else start().catch((error) => {
  if (error instanceof Lost) lost();
  else if (error instanceof Failed) complain(error.message);
  else throw error;
});
