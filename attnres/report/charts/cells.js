// Depth matrices: one coloured cell for each site and source that it sees.

import { html, number, svg } from "./dom.js";
import { interactive } from "./tooltip.js";

// Colours from low to high: matplotlib's coolwarm.
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
  at: (place) => blend(SIGNED, place),
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
