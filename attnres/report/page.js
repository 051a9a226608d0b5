// Draws the charts of the page from the JSON beside this script.

import { matrixFigure, shares } from "./charts/cells.js";
import { html, svg } from "./charts/dom.js";
import { lineChart } from "./charts/lines.js";

const data = JSON.parse(document.getElementById("data").textContent);
const hiddenArms = new Set();
let view = 0; // 0: mean over tokens; k + 1: chosen token k
let normalised = false;
let logarithmic = true;

const shownArms = (part) => data.arms.filter((arm, i) => arm[part] && !hiddenArms.has(i));
const lineOf = (arm, x, y) => ({ name: arm.name, colour: arm.colour, dashes: arm.dashes, seeds: arm.seeds, x, y });

function drawCurves() {
  const parent = document.getElementById("curve-charts");
  parent.replaceChildren();
  const arms = shownArms("curve");
  if (!arms.length) return;
  const baseline = data.arms.find((arm) => arm.curve);
  const last = Math.max(...arms.map((arm) => arm.curve.steps.at(-1)));
  const draw = (title, part, from) => {
    const lines = arms.filter((arm) => arm[part]).map((arm) => {
      const { steps, ...curve } = arm[part];
      const keep = (values) => values.filter((_, i) => steps[i] >= from);
      return { ...lineOf(arm, keep(steps), keep(curve.mean)), low: keep(curve.low), high: keep(curve.high) };
    });
    if (!lines.length) return;
    if (part === "difference" && !hiddenArms.has(data.arms.indexOf(baseline))) {
      lines.unshift(lineOf(baseline, lines[0].x, lines[0].x.map(() => 0)));
    }
    const label = (x) => `step ${Math.round(x)}`;
    lineChart(parent, lines, { title, zero: part === "difference", xLabel: "step", label });
  };
  draw(`${data.curveLabel} (${data.unit})`, "curve", -Infinity);
  draw("Second half", "curve", last / 2);
  draw(`Difference to ${baseline.name}, paired by seed`, "difference", last / 10);
}

function drawProfiles() {
  const parent = document.getElementById("profile-charts");
  parent.replaceChildren();
  const arms = shownArms("profile");
  if (!arms.length) return;
  const deepest = arms.map((arm) => arm.profile).reduce((a, b) => (a.sites.length >= b.sites.length ? a : b));
  const panels = [
    ["output", "Output magnitude (RMS)", "source", logarithmic],
    ["gradient", "Gradient magnitude (RMS)", "source", logarithmic],
    ["input", "Input magnitude (RMS)", "site", logarithmic],
    ["entropy", "Entropy of depth weights (nats; grey: uniform)", "site", false],
    ["embeddingShare", "Share of the embedding", "site", false],
    ["sourceShare", "Share of each source, mean over its sites", "source", false],
  ];
  for (const [field, title, kind, log] of panels) {
    const lines = arms.map((arm) => lineOf(arm, arm.profile[field].map((_, i) => i), arm.profile[field]));
    if (field === "entropy") {
      const limit = deepest.entropyLimit;
      const name = "uniform (the limit, grey)";
      lines.unshift({ name, colour: "#888888", dashes: "", wide: true, x: limit.map((_, i) => i), y: limit });
    }
    const names = deepest[`${kind}s`];
    lineChart(parent, lines, { title: log ? `${title}, log` : title, log, zero: !log, ticks: deepest[`${kind}Ticks`],
      xLabel: `${kind} (layer)`, label: (x) => names[x] });
  }
}

// ---- depth matrices ----

function shownMatrix(profile) {
  const matrix = profile.matrices[view];
  if (!normalised) return matrix;
  if (view === 0) return profile.share;
  return matrix.map(shares);
}

function drawMatrices() {
  const parent = document.getElementById("matrix-charts");
  parent.replaceChildren();
  for (const { profile, ...arm } of data.arms) {
    if (!profile) continue;
    const scale = normalised ? profile.shareScale : profile.matrixScale;
    matrixFigure(parent, { ...profile, ...arm }, shownMatrix(profile), scale);
  }
}

// ---- controls ----

function toggle(button, pressed, change) {
  button.setAttribute("aria-pressed", pressed);
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", now);
    change(now);
  });
}

function buildTokenChoice() {
  const group = document.getElementById("token-choice");
  if (!data.tokens.length) { group.remove(); return; }
  const choices = [["mean over tokens"], ...data.tokens.map((token) => [
    `token ${token.position}: `, html("code", {}, token.before, html("mark", {}, token.token), token.after)])];
  const buttons = choices.map((content) => html("button", { type: "button" }, ...content));
  const choose = (chosen) => {
    view = chosen;
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => { choose(i); drawMatrices(); }));
  choose(0);
  group.append(...buttons);
}

function buildLegends() {
  for (const legend of document.querySelectorAll(".legend")) {
    legend.replaceChildren(...data.arms.map((arm, i) => {
      const swatch = svg("svg", { width: 28, height: 8, "aria-hidden": "true" });
      svg("line", { x1: 0, x2: 28, y1: 4, y2: 4, stroke: arm.colour, "stroke-width": 3,
        "stroke-dasharray": arm.dashes }, swatch);
      const button = html("button", { type: "button", title: "show or hide" }, swatch, arm.name);
      button.setAttribute("aria-pressed", !hiddenArms.has(i));
      button.addEventListener("click", () => {
        if (!hiddenArms.delete(i)) hiddenArms.add(i);
        for (const other of document.querySelectorAll(".legend"))
          other.children[i].setAttribute("aria-pressed", !hiddenArms.has(i));
        drawCurves();
        drawProfiles();
      });
      return button;
    }));
  }
}

function describeCurves() {
  const seeds = Math.max(...data.arms.map((arm) => arm.seeds));
  document.getElementById("curve-note").textContent = seeds > 1
    ? `Line: mean of up to ${seeds} seeds. Band: from the lowest to the highest seed.` : "One seed.";
}

function draw() {
  drawCurves();
  drawMatrices();
  drawProfiles();
}
buildTokenChoice();
buildLegends();
describeCurves();
toggle(document.getElementById("normalise"), false, (now) => { normalised = now; drawMatrices(); });
toggle(document.getElementById("log"), true, (now) => { logarithmic = now; drawProfiles(); });
draw();
let drawnAt = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth === drawnAt) return; // a phone's address bar changes the height only
  drawnAt = document.body.clientWidth;
  draw();
});
