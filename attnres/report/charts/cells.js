// Depth matrices: one coloured cell for each site and source that it sees.

import { html, number, svg } from "./dom.js";
import { interactive } from "./tooltip.js";

// Colours of weights from low to high: matplotlib's viridis and, where weights have signs, coolwarm.
const WEIGHT = [
  [68, 1, 84], [72, 24, 106], [71, 45, 123], [66, 64, 134], [59, 82, 139], [51, 99, 141], [44, 114, 142],
  [38, 130, 142], [33, 145, 140], [31, 160, 136], [40, 174, 128], [63, 188, 115], [94, 201, 98], [132, 212, 75],
  [173, 220, 48], [216, 226, 25], [253, 231, 37],
];
const SIGNED = [
  [59, 76, 192], [78, 104, 216], [98, 130, 234], [119, 154, 247], [141, 176, 254], [163, 194, 254],
  [185, 208, 249], [204, 217, 237], [221, 220, 220], [236, 211, 197], [245, 196, 172], [247, 176, 147],
  [244, 152, 122], [235, 125, 98], [221, 95, 75], [202, 59, 55], [180, 4, 38],
];
const GREY = [140, 140, 140], NEGATIVE = [230, 159, 0], MOST_TIMES = 4;

const blend = (colours, share) => {
  const at = Math.max(0, Math.min(1, share)) * (colours.length - 1), i = Math.min(Math.floor(at), colours.length - 2);
  return colours[i].map((c, k) => Math.round(c + (at - i) * (colours[i + 1][k] - c)));
};

// A scale: `of(matrix)` gives each cell's place from 0 to 1, `at(place)` its colour; `labels` stand under the bar.
export const between = ([low, high], labels = [low, (low + high) / 2, high].map((value) => number(value, 2))) => ({
  of: (matrix) => matrix.map((row) => row.map((value) => (value === null ? null : (value - low) / (high - low)))),
  at: (place) => blend(low < 0 ? SIGNED : WEIGHT, place),
  labels,
});

// That of depth matrices is style.depth_colours: a weight over the mean size of its row, from none to MOST_TIMES. So
// all rules can be compared, and the plain residual is grey. -1 stands for a negative weight.
function placeOf(times) {
  if (times < 0) return -1;
  return times < 1 ? times / 2 : 0.5 + (Math.min(times, MOST_TIMES) - 1) / (2 * (MOST_TIMES - 1));
}
export const DEPTH = {
  of: (matrix) => matrix.map((row) => shares(row).map((share, i) =>
    (share === null ? (row[i] === null ? null : 0) : placeOf(Math.sign(row[i]) * share * row.length)))),
  at: (place) => (place < 0 ? NEGATIVE : blend(SIGNED, place)),
  labels: ["0", "the row's mean", `≥ ${MOST_TIMES} times`],
};

// How a site divides what it reads: each weight's size over the sum of them; null where there is none.
export function shares(row) {
  const total = row.reduce((sum, value) => sum + Math.abs(value ?? 0), 0);
  return row.map((value) => (value === null || total === 0 ? null : Math.abs(value) / total));
}

function pixels(matrix, scale) {
  const width = Math.max(...matrix.map((row) => row.length)), height = matrix.length;
  const canvas = html("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  scale.of(matrix).forEach((row, site) => row.forEach((value, source) => {
    image.data.set([...(value === null ? GREY : scale.at(value)), 255], 4 * (site * width + source));
  }));
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// box: {x, y, width, height} in the chart.
export function cells(chart, matrix, scale, box) {
  svg("image", { href: pixels(matrix, scale), ...box, class: "cells",
    preserveAspectRatio: "none", style: "image-rendering: pixelated" }, chart);
}

// The colours from low to high, without labels.
export function gradient(chart, scale, { x, y, width, height }) {
  const steps = 64;
  for (let i = 0; i < steps; i++) {
    svg("rect", { x: x + (i / steps) * width, y, width: width / steps + 0.5, height,
      fill: `rgb(${scale.at((i + 0.5) / steps)})` }, chart);
  }
}

function colourBar(chart, scale, left, top, width) {
  gradient(chart, scale, { x: left, y: top, width, height: 10 });
  scale.labels.forEach((label, i) => svg("text", { x: left + (i / 2) * width, y: top + 24,
    "text-anchor": ["start", "middle", "end"][i] }, chart, label));
}

// arm: {name, description, sites, sources, siteTicks, sourceTicks}; select({site, source}) is called by a click.
export function matrixFigure(parent, arm, matrix, scale, select) {
  const n = matrix.length;
  const caption = html("figcaption", {}, arm.name, html("small", {}, arm.description));
  const figure = html("figure", { className: "depth" }, caption);
  figure.dataset.arm = arm.name;
  parent.append(figure);
  const width = Math.max(200, figure.clientWidth), left = 44, top = 4;
  const size = width - left - 6, height = top + size + 74;
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": `Depth matrix of ${arm.name}: ${n} sites by ${n} sources. Arrow keys read out single weights.`,
  }, figure);
  cells(chart, matrix, scale, { x: left, y: top, width: size, height: size });
  const cell = size / n;
  svg("path", { d: `M${left} ${top}V${top + size}H${left + size}`, fill: "none", class: "axis" }, chart);
  for (const [i, label] of arm.sourceTicks)
    svg("text", { x: left + (i + 0.5) * cell, y: top + size + 14, "text-anchor": "middle" }, chart, label);
  for (const [i, label] of arm.siteTicks)
    svg("text", { x: left - 5, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, chart, label);
  svg("text", { x: left + size / 2, y: top + size + 29, "text-anchor": "middle" }, chart, "source (layer)");
  const upwards = `translate(11 ${top + size / 2}) rotate(-90)`;
  svg("text", { x: 0, y: 0, "text-anchor": "middle", transform: upwards }, chart, "site that reads (layer)");
  colourBar(chart, scale, left, top + size + 40, size);

  const marker = svg("rect", { width: cell, height: cell, class: "marker", visibility: "hidden" }, chart);
  const pick = (px, py) => {
    const source = Math.floor((px - left) / cell), site = Math.floor((py - top) / cell);
    return source >= 0 && site < n && source <= site ? { site, source } : null;
  };
  interactive(chart,
    pick,
    (cursor, dx, dy) => {
      if (!cursor) return { site: n - 1, source: 0 };
      const site = Math.max(0, Math.min(n - 1, cursor.site + dy));
      return { site, source: Math.max(0, Math.min(site, cursor.source + dx)) };
    },
    ({ site, source }) => {
      const x = left + source * cell, y = top + site * cell;
      marker.setAttribute("x", x);
      marker.setAttribute("y", y);
      marker.setAttribute("visibility", "visible");
      const value = matrix[site][source];
      const weight = value === null ? "an unknown amount" : number(value);
      return { text: `${arm.sites[site]} reads ${weight} of ${arm.sources[source]}`, x: x + cell, y: y + cell };
    },
    () => marker.setAttribute("visibility", "hidden"));
  if (!select) return;
  chart.addEventListener("click", (event) => {
    const box = chart.getBoundingClientRect();
    const at = pick(event.clientX - box.left, event.clientY - box.top);
    if (at) select(at);
  });
}

// Any other cells: {title, xLabel, yLabel, sites, sources, siteTicks, sourceTicks, scale, texts?, log}.
export function cellsFigure(parent, of, matrix) {
  const f = of.log ? Math.log : (value) => value, back = of.log ? Math.exp : f;
  const [low, high] = of.scale.map(f), scale = between([low, high]), rows = matrix.length, columns = of.sources.length;
  const figure = html("figure", {}, html("figcaption", {}, of.title));
  parent.append(figure);
  const width = Math.max(240, figure.clientWidth);
  const left = Math.min(width / 2, 24 + 6.6 * Math.max(...of.siteTicks.map(([, label]) => label.length)));
  const top = 4, across = width - left - 8, down = Math.max(150, (of.texts ? 24 : 8) * rows);
  const height = top + down + 74, cell = [across / columns, down / rows];
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": `${of.title}: ${rows} by ${columns} numbers. Arrow keys read them out.` }, figure);
  const light = (value) => low + high - value; // under words, low numbers are light
  const shown = matrix.map((row) => row.map((value) =>
    (value === null || (of.log && value <= 0) ? null : of.texts ? light(value) : f(value))));
  cells(chart, shown, scale, { x: left, y: top, width: across, height: down });
  for (const [i, label] of of.sourceTicks)
    svg("text", { x: left + (i + 0.5) * cell[0], y: top + down + 14, "text-anchor": "middle" }, chart, label);
  for (const [i, label] of of.siteTicks)
    svg("text", { x: left - 5, y: top + (i + 0.5) * cell[1] + 4, "text-anchor": "end" }, chart, label);
  svg("text", { x: left + across / 2, y: top + down + 29, "text-anchor": "middle" }, chart, of.xLabel);
  (of.texts || []).forEach((texts, row) => texts.forEach((text, column) => {
    const dark = matrix[row][column] > (low + high) / 2;
    svg("text", { x: left + (column + 0.5) * cell[0], y: top + (row + 0.5) * cell[1] + 4, "text-anchor": "middle",
      style: `fill: ${dark ? "#fff" : "#1a1a1a"}; font-size: 11px` }, chart, text);
  }));
  if (!of.texts) {
    gradient(chart, scale, { x: left, y: top + down + 40, width: across, height: 10 });
    for (const [at, anchor, value] of [[0, "start", low], [1, "end", high]])
      svg("text", { x: left + at * across, y: top + down + 64, "text-anchor": anchor }, chart, number(back(value), 2));
  }
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
  interactive(chart,
    (px, py) => {
      const column = Math.floor((px - left) / cell[0]), row = Math.floor((py - top) / cell[1]);
      return column >= 0 && column < columns && row >= 0 && row < rows ? { row, column } : null;
    },
    (cursor, dx, dy) => (cursor ? { row: clamp(cursor.row + dy, rows), column: clamp(cursor.column + dx, columns) }
      : { row: 0, column: 0 }),
    ({ row, column }) => ({
      text: `${of.sites[row]}, ${of.xLabel} ${of.sources[column]}: `
        + (of.texts?.[row][column] || number(matrix[row][column], 4)),
      x: left + (column + 1) * cell[0], y: top + (row + 1) * cell[1],
    }),
    () => {});
}
