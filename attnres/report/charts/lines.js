// A line chart.

import { html, number, svg } from "./dom.js";
import { interactive } from "./tooltip.js";

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  const digits = (tick) => Math.max(3, 2 + Math.ceil(Math.log10(Math.abs(tick) / step))); // those that tell neighbours
  return found.map((tick) => [tick, number(tick, digits(tick))]);
}

// lines: {name, colour, dashes, x, y}, where a y of null is a gap; options: {title, xLabel, label(x)}
export function lineChart(parent, lines, options) {
  const figure = html("figure", {}, html("figcaption", {}, options.title));
  parent.append(figure);
  const width = Math.max(240, figure.clientWidth), height = 280;
  const left = 56, right = width - 14, top = 10, bottom = height - 40;
  const ys = lines.flatMap((line) => line.y).filter((y) => y !== null), xs = lines.flatMap((line) => line.x);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": `${options.title}: lines for ${lines.map((line) => line.name).join(", ")}` }, figure);
  if (!ys.length) { svg("text", { x: left, y: height / 2 }, chart, "nothing to show"); return; }
  const pad = (Math.max(...ys) - Math.min(...ys) || 1) * 0.04;
  const low = Math.min(...ys) - pad, high = Math.max(...ys) + pad;
  const xLow = Math.min(...xs), xHigh = Math.max(...xs, xLow + 1);
  const scaleX = (x) => left + ((x - xLow) / (xHigh - xLow)) * (right - left);
  const scaleY = (y) => bottom - ((y - low) / (high - low)) * (bottom - top);

  for (const [tick, label] of ticks(low, high, 7)) {
    svg("line", { x1: left, x2: right, y1: scaleY(tick), y2: scaleY(tick), class: "axis" }, chart);
    svg("text", { x: left - 6, y: scaleY(tick) + 4, "text-anchor": "end" }, chart, label);
  }
  for (const [tick, label] of ticks(xLow, xHigh, width / 90)) {
    svg("line", { x1: scaleX(tick), x2: scaleX(tick), y1: bottom, y2: bottom + 4, class: "axis" }, chart);
    svg("text", { x: scaleX(tick), y: bottom + 17, "text-anchor": "middle" }, chart, label);
  }
  svg("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, chart, options.xLabel);

  for (const line of lines) {
    const points = line.x.map((x, i) => (line.y[i] === null ? null : [scaleX(x), scaleY(line.y[i])]));
    if (points.length <= 12) { // few points, perhaps one: show where they are
      for (const p of points) if (p) svg("circle", { cx: p[0], cy: p[1], r: 3, fill: line.colour }, chart);
    }
    let path = "", pen = "M";
    for (const p of points) {
      path += p ? `${pen}${p[0].toFixed(1)} ${p[1].toFixed(1)}` : "";
      pen = p ? "L" : "M";
    }
    svg("path", { d: path, fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-dasharray": line.dashes },
      chart);
  }

  const guide = svg("line", { y1: top, y2: bottom, class: "guide", visibility: "hidden" }, chart);
  const columns = [...new Set(xs)].sort((a, b) => a - b);
  const nearest = (px) => columns.reduce(
    (best, x, i) => (Math.abs(scaleX(x) - px) < Math.abs(scaleX(columns[best]) - px) ? i : best), 0);
  interactive(chart,
    (px) => ({ i: nearest(px) }),
    (cursor, dx) => ({ i: Math.max(0, Math.min(columns.length - 1, cursor ? cursor.i + dx : 0)) }),
    ({ i }) => {
      const x = columns[i];
      const rows = lines.filter((line) => line.x.includes(x)).map((line) => [line.y[line.x.indexOf(x)], line.name]);
      rows.sort((a, b) => (b[0] ?? -Infinity) - (a[0] ?? -Infinity));
      for (const end of ["x1", "x2"]) guide.setAttribute(end, scaleX(x));
      guide.setAttribute("visibility", "visible");
      const said = rows.map(([y, name]) => `${name}: ${number(y, 4)}`);
      return { text: [options.label(x), ...said].join("\n"), x: scaleX(x), y: top };
    },
    () => guide.setAttribute("visibility", "hidden"));
}
