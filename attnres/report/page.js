// Draws the pictures of the page from the JSON beside this script.

import { DEPTH, matrixFigure } from "./charts/cells.js";
import { html, svg } from "./charts/dom.js";
import { lineChart } from "./charts/lines.js";
import { rowChart } from "./charts/rows.js";

const hidden = new Set(); // names of arms

// One of the page's pictures: its controls, and its charts, which are drawn anew when something is chosen.
function picture(parent, data) {
  let view = 0, logarithmic = true;
  const controls = html("div", { className: "controls" }), charts = html("div", { className: "charts" });
  parent.append(controls, charts);

  function chart(of) {
    const title = of.log && logarithmic && of.kind === "lines" ? `${of.title}, log` : of.title;
    if (of.kind === "lines") {
      const lines = of.lines.filter((line) => !hidden.has(line.name))
        .map((line) => ({ ...line, dots: line.as === "dots", bars: line.as === "bars", wide: line.as === "guide" }));
      const label = (x) => (of.names ? of.names[Math.round(x)] : `${of.xLabel} ${Number(x.toPrecision(6))}`);
      const log = of.log && logarithmic;
      if (lines.length) lineChart(charts, lines, { ...of, title, log, zero: of.zero || (of.log && !log), label });
    } else if (of.kind === "rows") rowChart(charts, of);
    else matrixFigure(charts, of, of.views[view], DEPTH);
  }
  const draw = () => { charts.replaceChildren(); data.charts.forEach(chart); };

  if (data.arms.length) {
    const legend = html("div", { className: "legend", role: "group" });
    legend.setAttribute("aria-label", "Connections shown in the charts");
    legend.append(...data.arms.map((arm) => armButton(arm)));
    controls.append(legend);
  }
  if (data.views.length) {
    const buttons = data.views.map((of) => html("button", { type: "button" }, ...(of.whole ? [of.whole] : [
      `token ${of.position}: `, html("code", {}, of.before, html("mark", {}, of.token), of.after)])));
    const choose = (chosen) => {
      view = chosen;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
    };
    buttons.forEach((button, i) => button.addEventListener("click", () => { choose(i); draw(); }));
    choose(0);
    controls.append(html("div", { className: "views" }, ...buttons));
  }
  const toggle = (className, text, pressed, change) => {
    const button = html("button", { type: "button", className }, text);
    button.setAttribute("aria-pressed", pressed);
    button.addEventListener("click", () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", now);
      change(now);
      draw();
    });
    controls.append(button);
  };
  if (data.charts.some((of) => of.kind === "lines" && of.log))
    toggle("log", "logarithmic magnitudes", true, (now) => { logarithmic = now; });
  return draw;
}

// An arm that is hidden is so in every picture.
function armButton(arm) {
  const swatch = svg("svg", { width: 28, height: 8, "aria-hidden": "true" });
  svg("line", { x1: 0, x2: 28, y1: 4, y2: 4, stroke: arm.colour, "stroke-width": 3, "stroke-dasharray": arm.dashes },
    swatch);
  const button = html("button", { type: "button", title: "show or hide" }, swatch, arm.name);
  button.dataset.arm = arm.name;
  button.setAttribute("aria-pressed", true);
  button.addEventListener("click", () => {
    if (!hidden.delete(arm.name)) hidden.add(arm.name);
    for (const other of document.querySelectorAll(".legend button"))
      if (other.dataset.arm === arm.name) other.setAttribute("aria-pressed", !hidden.has(arm.name));
    drawAll();
  });
  return button;
}

const places = document.querySelectorAll(".picture");
const pictures = JSON.parse(document.getElementById("data").textContent)
  .map((data, i) => picture(places[i], data));
const drawAll = () => pictures.forEach((draw) => draw());
drawAll();
let drawnAt = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth === drawnAt) return; // a phone's address bar changes the height only
  drawnAt = document.body.clientWidth;
  drawAll();
});
