// A row of points for each arm.

import { html, number, svg } from "./dom.js";
import { labelled, linearTicks } from "./lines.js";
import { interactive } from "./tooltip.js";

// of: {title, xLabel, zero, rows: [{name, colour, points, mean, interval, wider, mark}]}; ends that are null: no bound.
export function rowChart(parent, of) {
  const figure = html("figure", {}, html("figcaption", {}, of.title));
  parent.append(figure);
  const step = 34, top = 4;
  const width = Math.max(240, figure.clientWidth), bottom = top + step * of.rows.length, height = bottom + 40;
  const left = 10, right = width - 14;
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": `${of.title}: rows for ${of.rows.map((row) => row.name).join(", ")}` }, figure);
  const known = of.rows.flatMap((row) => [...row.points, row.mean, row.mark, ...(row.interval || [])])
    .concat(of.zero).filter((value) => value !== null);
  if (!known.length) { svg("text", { x: left, y: top + 14 }, chart, "nothing to show"); return; }
  const pad = (Math.max(...known) - Math.min(...known) || 1) * 0.05;
  const low = Math.min(...known) - pad, high = Math.max(...known) + pad;
  // What is wider than all that is shown ends at the frame.
  const scale = (x) => Math.max(left, Math.min(right, left + ((x - low) / (high - low)) * (right - left)));
  for (const [tick, label] of labelled(linearTicks(low, high, width / 90))) {
    svg("line", { x1: scale(tick), x2: scale(tick), y1: top, y2: bottom, class: "axis" }, chart);
    svg("text", { x: scale(tick), y: bottom + 16, "text-anchor": "middle" }, chart, label);
  }
  svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, chart, of.xLabel);
  if (of.zero !== null)
    svg("line", { x1: scale(of.zero), x2: scale(of.zero), y1: top, y2: bottom, stroke: "currentColor" }, chart);
  of.rows.forEach((row, i) => {
    const y = top + i * step + 24, line = (ends, thick) => ends && ends[0] !== null && svg("line", {
      x1: scale(ends[0]), x2: ends[1] === null ? right : scale(ends[1]), y1: y, y2: y, stroke: row.colour,
      "stroke-width": thick }, chart);
    svg("text", { x: left, y: y - 9, style: "paint-order: stroke; stroke: var(--paper); stroke-width: 3px" }, chart,
      row.name);
    line(row.wider, 1);
    line(row.interval, 3);
    for (const x of row.points)
      if (x !== null) svg("circle", { cx: scale(x), cy: y, r: 3.5, fill: row.colour, opacity: 0.5 }, chart);
    if (row.mean !== null) svg("line", { x1: scale(row.mean), x2: scale(row.mean), y1: y - 6, y2: y + 6,
      stroke: row.colour, "stroke-width": 3 }, chart);
    if (row.mark !== null) svg("rect", { x: scale(row.mark) - 4, y: y - 4, width: 8, height: 8, class: "guide",
      fill: "none", style: "stroke-dasharray: none", transform: `rotate(45 ${scale(row.mark)} ${y})` }, chart);
  });
  const ends = ([one, two]) => `${number(one, 4)} to ${two === null ? "no bound" : number(two, 4)}`;
  const told = (row) => [row.name, row.mean !== null && `mean ${number(row.mean, 4)}`,
    row.interval && ends(row.interval), row.wider && `wider: ${ends(row.wider)}`,
    row.mark !== null && `elsewhere ${number(row.mark, 4)}`].filter(Boolean).join("\n");
  interactive(chart,
    (px, py) => (of.rows[Math.floor((py - top) / step)] ? { i: Math.floor((py - top) / step) } : null),
    (cursor, dx, dy) => ({ i: Math.max(0, Math.min(of.rows.length - 1, cursor ? cursor.i + dy + dx : 0)) }),
    ({ i }) => ({ text: told(of.rows[i]), x: scale(of.rows[i].mean ?? low), y: top + i * step + 30 }),
    () => {});
}
