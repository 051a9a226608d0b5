// Line charts.

import { html, number, svg } from "./dom.js";
import { interactive } from "./tooltip.js";

export function linearTicks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}
// As few of 1 to 9 times the powers of ten as give at least three ticks; where none do, those of a linear axis.
function logTicks(low, high) {
  const powers = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) powers.push(k);
  const stride = Math.ceil(powers.length / 8);
  let ticks = [];
  for (const factors of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    ticks = powers.filter((_, i) => i % stride === 0).flatMap((k) => factors.map((factor) => factor * 10 ** k));
    ticks = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    if (ticks.length >= 3) return ticks;
  }
  return linearTicks(low, high, 5);
}
// With the digits that tell each tick from its neighbours.
export function labelled(ticks) {
  const gap = Math.min(...ticks.slice(1).map((tick, i) => tick - ticks[i]));
  return ticks.map((tick) => [tick, number(tick, Math.max(3, 2 + Math.ceil(Math.log10(Math.abs(tick) / gap))))]);
}

// lines: {name, colour, dashes, wide?, dots?, bars?, x, y, low?, high?}, dots without a line, bars in place
// of a band; options: {title, xLabel, ticks?, log, logX?, zero, label(x)}
export function lineChart(parent, lines, options) {
  const figure = html("figure", {}, html("figcaption", {}, options.title));
  parent.append(figure);
  const width = Math.max(240, figure.clientWidth), height = 280;
  const lastLabel = options.ticks?.at(-1)?.[1].length || 0; // half of it stands to the right of its tick
  const left = 56, right = width - Math.max(14, 4 * lastLabel), top = 10, bottom = height - 40;
  const usable = (y) => y !== null && (!options.log || y > 0);
  const ys = lines.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || [])]).filter(usable);
  const xs = lines.flatMap((line) => line.x);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": `${options.title}: lines for ${lines.map((line) => line.name).join(", ")}` }, figure);
  if (!ys.length) { svg("text", { x: left, y: height / 2 }, chart, "nothing to show"); return; }
  let low = Math.min(...ys), high = Math.max(...ys);
  if (options.zero) { low = Math.min(0, low); high = Math.max(0, high); }
  const pad = (high - low || Math.abs(high) || 1) * 0.04;
  if (options.log) { low /= 1.1; high *= 1.1; }
  else { if (high !== 0) high += pad; if (low !== 0) low -= pad; }
  if (high === low) high = low + 1;
  const xLow = Math.min(...xs), xHigh = Math.max(...xs, options.logX ? xLow * 1.1 : xLow + 1);
  const g = options.logX ? Math.log : (x) => x;
  const scaleX = (x) => left + ((g(x) - g(xLow)) / (g(xHigh) - g(xLow))) * (right - left);
  const f = options.log ? Math.log : (y) => y;
  const scaleY = (y) => bottom - ((f(y) - f(low)) / (f(high) - f(low))) * (bottom - top);

  for (const [tick, label] of labelled(options.log ? logTicks(low, high) : linearTicks(low, high, 7))) {
    svg("line", { x1: left, x2: right, y1: scaleY(tick), y2: scaleY(tick), class: "axis" }, chart);
    svg("text", { x: left - 6, y: scaleY(tick) + 4, "text-anchor": "end" }, chart, label);
  }
  const ticksX = options.logX ? logTicks(xLow, xHigh).filter((_, i, all) => i % Math.ceil(all.length / 6) === 0)
    : linearTicks(xLow, xHigh, width / 90);
  for (const [x, label] of options.ticks || labelled(ticksX)) {
    svg("line", { x1: scaleX(x), x2: scaleX(x), y1: bottom, y2: bottom + 4, class: "axis" }, chart);
    svg("text", { x: scaleX(x), y: bottom + 17, "text-anchor": "middle" }, chart, label);
  }
  svg("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, chart, options.xLabel);

  for (const line of lines) {
    const at = (ys) => line.x.map((x, i) => (usable(ys[i]) ? [scaleX(x), scaleY(ys[i])] : null));
    if (line.bars) {
      at(line.low).forEach((p, i) => p && svg("line", { x1: p[0], x2: p[0], y1: p[1], y2: at(line.high)[i][1],
        stroke: line.colour }, chart));
    } else if (line.low) {
      const lower = at(line.low), upper = at(line.high);
      const ring = [...upper.filter(Boolean), ...lower.filter(Boolean).reverse()];
      svg("polygon", { points: ring.map((p) => p.join()).join(" "), fill: line.colour, opacity: 0.15 }, chart);
    }
    if (line.dots || line.x.length <= 12) { // few points, perhaps one: show where they are
      for (const p of at(line.y)) if (p) svg("circle", { cx: p[0], cy: p[1], r: 3, fill: line.colour }, chart);
    }
    if (line.dots) continue;
    let path = "", pen = "M";
    for (const p of at(line.y)) {
      path += p ? `${pen}${p[0].toFixed(1)} ${p[1].toFixed(1)}` : "";
      pen = p ? "L" : "M";
    }
    svg("path", { d: path, fill: "none", stroke: line.colour, "stroke-width": line.wide ? 7 : 2,
      opacity: line.wide ? 0.35 : 1, "stroke-dasharray": line.dashes }, chart);
  }

  const guide = svg("line", { y1: top, y2: bottom, class: "guide", visibility: "hidden" }, chart);
  const columns = [...new Set(xs)].sort((a, b) => a - b);
  const nearest = (px) => columns.reduce(
    (best, x, i) => (Math.abs(scaleX(x) - px) < Math.abs(scaleX(columns[best]) - px) ? i : best), 0);
  interactive(chart,
    (px) => ({ i: nearest(px) }),
    (cursor, dx) => ({ i: Math.max(0, Math.min(columns.length - 1, cursor ? cursor.i + dx : 0)) }),
    ({ i }) => {
      const x = columns[i], rows = [];
      for (const line of lines) {
        const k = line.x.indexOf(x);
        if (k < 0) continue;
        const spread = line.low && (line.bars || line.seeds > 1)
          ? ` (${number(line.low[k], 4)} to ${number(line.high[k], 4)})` : "";
        rows.push({ y: line.y[k], text: `${line.name}: ${number(line.y[k], 4)}${spread}` });
      }
      rows.sort((a, b) => (b.y ?? -Infinity) - (a.y ?? -Infinity));
      for (const end of ["x1", "x2"]) guide.setAttribute(end, scaleX(x));
      guide.setAttribute("visibility", "visible");
      return { text: [options.label(x), ...rows.map((row) => row.text)].join("\n"), x: scaleX(x), y: top };
    },
    () => guide.setAttribute("visibility", "hidden"));
}
