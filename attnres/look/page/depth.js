// One token's way through the depth of a model: who reads whom, with numbers and the matrix beside it.
//
// Row 0, on top, is the embedding (source 0). Row r is the sublayer whose input is site r - 1 and whose output is
// source r, and the last row is the readout (site L). All columns and the matrix stand on the same rows.

import { DEPTH, cells, gradient, shares } from "../../report/charts/cells.js";
import { number, svg } from "../../report/charts/dom.js";
import { interactive } from "../../report/charts/tooltip.js";

const kindOf = (name) =>
  name === "embedding" || name === "readout" ? name : /atten|mixer|mamba|conv|delta/i.test(name) ? "attention" : "mlp";

const MARKS = {
  attention: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  mlp: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  embedding: (x, y, r) => `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}z`,
  readout: (x, y, r) => `M${x} ${y + r * 1.2}L${x + r * 1.2} ${y - r}L${x - r * 1.2} ${y - r}z`,
};
const mark = (parent, kind, x, y, r, attributes = {}) =>
  svg("path", { d: MARKS[kind](x, y, r), class: `mark ${kind}`, ...attributes }, parent);

function labelOf(name, room, tall) {
  const words = name.split(" ");
  if (words[0] !== "layer") return room ? name : name.replace("embedding", "embed");
  const kind = words.slice(2).join(" ");
  if (!tall && words[1] === "0") return ""; // next to the embedding's
  if (!tall) return kindOf(name) === "attention" ? (room ? `layer ${words[1]}` : words[1]) : "";
  return room ? name : `${words[1]} ${kind.replace("attention", "attn")}`;
}

const LABELLED = 13; // pixels from which on each row has room for words
const TOP = 52, BOTTOM = 44, LINE = 15;
const HEADS = { group: 12, title: 29, unit: 44 }; // the lines above the rows

// Geometry: where the columns stand for a given width. `columns` are those that a narrow page has room for.
function layout(width, rows, columns, withMatrix) {
  const roomy = width >= 640, fitting = (height) => Math.floor(height / rows);
  // All rows in one screen, beside a text, where that leaves them their labels. On a phone they must be touched.
  const seen = roomy ? Math.max(LABELLED, fitting(innerHeight / 2)) : Infinity;
  const rowHeight = Math.max(9, Math.min(30, fitting(720), seen));
  const labels = roomy ? 118 : 60;
  const matrix = withMatrix ? Math.max(210, Math.min(rows * rowHeight, width * 0.36)) : 0;
  const rest = width - labels - (matrix ? matrix + 44 : 0);
  const arcs = Math.max(136, Math.min(280, rest * (columns.length > 2 ? 0.31 : 0.5)));
  const each = (rest - arcs - 4) / columns.length;
  return { width, rowHeight, roomy, labels, matrix, arcs, top: TOP, bottom: BOTTOM,
    height: TOP + rows * rowHeight + BOTTOM,
    columns: columns.map((column, k) => ({ ...column, x: labels + arcs + k * each, width: each - 14 })),
    matrixX: width - matrix - 6 };
}

// The changes as lines of text that are no wider than the picture, at 6.5 pixels a letter.
function lines(changes, width) {
  const made = [];
  for (const [k, change] of changes.entries()) {
    const text = `${k ? "" : "changed: "}${change}${k < changes.length - 1 ? ";" : ""}`;
    if (made.length && 6.5 * (made.at(-1).length + text.length) < width) made[made.length - 1] += ` ${text}`;
    else made.push(text);
  }
  return made;
}

// view: {names: {sites, sources}, matrix: rows that arcs and cells show, loudness [source], site, source,
//        columns: [{id, title, values: row of numbers, marks?, texts?, note}], describe(site, source), label,
//        matrixTitle, withMatrix, changes: what is changed, in words}
export function depthPicture(parent, select, key) {
  const chart = svg("svg", { role: "img", tabindex: 0, class: "depth" }, parent);
  let view = null, box = null;
  const yOf = (row) => box.top + (row + 0.5) * box.rowHeight;

  function place(px, py) {
    const L = view.names.sites.length - 1;
    const row = Math.floor((py - box.top) / box.rowHeight);
    if (row < 0 || row > L + 1) return null;
    if (box.matrix && px >= box.matrixX) {
      const site = row - 1, source = Math.floor((px - box.matrixX) / (box.matrix / (L + 1)));
      return source >= 0 && source <= site ? { site, source, part: "matrix" } : null;
    }
    if (px >= box.labels + box.arcs) return row <= view.site ? { site: view.site, source: row, part: "row" } : null;
    return row === 0 ? { site: view.site, source: 0, part: "row" } : { site: row - 1, source: null, part: "site" };
  }
  interactive(chart,
    place,
    (cursor, dx, dy) => {
      const L = view.names.sites.length - 1;
      const site = Math.max(0, Math.min(L, view.site + dy));
      const source = Math.max(0, Math.min(site, (view.source ?? 0) + dx));
      select({ site, source });
      return { site, source, part: "key" };
    },
    (at) => {
      const y = yOf(at.part === "row" ? at.source : at.site + 1);
      const x = at.part === "matrix" ? box.matrixX + ((at.source + 1) * box.matrix) / view.names.sites.length
        : box.labels + box.arcs * 0.5;
      return { text: view.describe(at.site, at.source), x, y: y + box.rowHeight / 2 };
    },
    () => {});
  chart.addEventListener("click", (event) => {
    const area = chart.getBoundingClientRect();
    const at = place(event.clientX - area.left, event.clientY - area.top);
    if (at) select(at.source === null ? { site: at.site } : { site: at.site, source: at.source });
  });
  chart.addEventListener("keydown", key);

  function update(next) {
    view = next;
    const L = view.names.sites.length - 1;
    const width = Math.max(300, parent.clientWidth);
    box = layout(width, L + 2, view.columns, view.withMatrix);
    const notes = lines(view.changes, width), height = box.height + notes.length * LINE;
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`,
      "aria-label": view.label })) chart.setAttribute(name, value);
    chart.replaceChildren();
    drawBands();
    drawArcs();
    drawRows();
    drawGroup();
    view.columns.forEach((column, k) => drawColumn(column, box.columns[k]));
    if (box.matrix) drawMatrix();
    notes.forEach((line, k) => svg("text", { x: 4, y: box.height + k * LINE + 4, class: "changed" }, chart, line));
  }

  // The chosen site reaches into the matrix, whose row it is; the chosen source is a column there.
  function drawBands() {
    const band = (row, width, kind) => svg("rect", { x: 0, y: yOf(row) - box.rowHeight / 2, width,
      height: box.rowHeight, class: `band ${kind}` }, chart);
    band(view.site + 1, box.width, "site");
    if (view.source !== null) band(view.source, box.matrix ? box.matrixX - 24 : box.width, "source");
  }

  // Arcs of one kind of source and about one share are one path: a picture of 128 sublayers stays light.
  function drawArcs() {
    const spine = box.labels + 8, room = box.arcs - 24, rows = view.names.sites.length;
    const arc = (source, site) => {
      const from = yOf(source), to = yOf(site + 1);
      const bow = spine + 10 + (room - 10) * ((site + 1 - source) / rows) ** 0.75;
      return `M${spine} ${from.toFixed(1)}C${bow.toFixed(1)} ${from.toFixed(1)} ${bow.toFixed(1)} ${to.toFixed(1)} ` +
        `${spine} ${to.toFixed(1)}`;
    };
    const faint = new Map();
    view.matrix.forEach((row, site) => {
      if (site === view.site) return;
      const share = shares(row);
      share.forEach((s, source) => {
        if (s * row.length < 0.3 || s < 0.004) return;
        const group = `${kindOf(view.names.sources[source])} ${Math.min(4, Math.ceil(s * 5))}`;
        faint.set(group, (faint.get(group) || "") + arc(source, site));
      });
    });
    const back = svg("g", { class: "arcs" }, chart);
    for (const [group, d] of faint) {
      const [kind, level] = group.split(" ");
      svg("path", { d, class: `arc ${kind}`, "stroke-width": 0.5 + level * 0.9, opacity: 0.07 + level * 0.07 }, back);
    }
    const chosen = shares(view.matrix[view.site]);
    const most = Math.max(...chosen, 1e-12), thickest = 3 + 11 * most;
    const order = chosen.map((s, source) => [s, source]).filter(([s]) => s > 0).sort((a, b) => a[0] - b[0]);
    for (const [s, source] of order) {
      const isSource = source === view.source;
      svg("path", { d: arc(source, view.site), class: `arc ${kindOf(view.names.sources[source])} chosen`,
        "stroke-width": 0.6 + thickest * (s / most), opacity: isSource || view.source === null ? 0.95 : 0.6 }, chart);
    }
    svg("line", { x1: spine, x2: spine, y1: yOf(0), y2: yOf(view.names.sites.length), class: "spine" }, chart);
  }

  function drawRows() {
    const { sites, sources } = view.names, spine = box.labels + 8;
    const loudest = Math.max(...view.loudness.filter(Number.isFinite), 1e-30);
    [...sources, "readout"].forEach((name, row) => {
      const r = row > sources.length - 1 ? 5
        : 2 + Math.min(5, box.rowHeight / 2 - 1.5) * Math.sqrt((view.loudness[row] || 0) / loudest);
      const isSite = row === view.site + 1;
      const size = Math.min(r, box.rowHeight / 2 + 1.5);
      mark(chart, kindOf(name), spine, yOf(row), size, isSite ? { "data-site": "" } : {});
      const named = row === sources.length ? sites[sites.length - 1] : name;
      const label = labelOf(named, box.roomy, box.rowHeight >= LABELLED);
      const y = yOf(row) + (box.rowHeight >= LABELLED || label === name ? 4 : 4 - box.rowHeight / 2);
      svg("text", { x: box.labels - 6, y, "text-anchor": "end", class: isSite ? "label on" : "label" }, chart, label);
    });
    svg("text", { x: box.labels + 2, y: HEADS.title, class: "head" }, chart, "reads from earlier");
  }

  // Whose columns they are: those of sources say what the chosen site reads of each row.
  function drawGroup() {
    const [first] = box.columns.filter((column) => !column.texts);
    if (!first) return;
    const text = `${view.names.sites[view.site]} reads of each row:`;
    const x = Math.min(first.x, box.width - 6 * text.length); // 6 pixels a letter: it stays inside on a phone
    svg("text", { x, y: HEADS.group, class: "unit" }, chart, text);
  }

  function drawColumn(column, at) {
    svg("text", { x: at.x, y: HEADS.title, class: "head" }, chart, column.title);
    svg("text", { x: at.x, y: HEADS.unit, class: "unit" }, chart, column.unit);
    const values = [...column.values, ...(column.marks ?? [])].filter((value) => (value ?? null) !== null);
    const low = Math.min(0, ...values), high = Math.max(0, ...values, low === 0 ? 1e-12 : 0);
    const written = column.texts && box.rowHeight >= LABELLED;
    const room = written ? at.width * 0.3 : at.width - (box.rowHeight >= LABELLED ? 38 : 4);
    const scale = room / (high - low || 1), zero = at.x - low * scale, thick = Math.max(4, box.rowHeight - 5);
    svg("line", { x1: zero, x2: zero, y1: yOf(column.first) - box.rowHeight / 2,
      y2: yOf(column.first + column.values.length - 1) + box.rowHeight / 2, class: "axis" }, chart);
    column.values.forEach((value, k) => {
      if (value === null || value === undefined) return;
      const row = column.first + k, end = zero + value * scale;
      const kind = column.texts ? "lens" : kindOf(view.names.sources[row]);
      svg("rect", { x: Math.min(zero, end), y: yOf(row) - thick / 2, width: Math.max(0.5, Math.abs(end - zero)),
        height: thick, class: `bar ${kind}` }, chart);
      const beside = zero + (column.marks?.[k] ?? 0) * scale, top = yOf(row) - thick / 2 - 1;
      if (column.marks) svg("path", { d: `M${beside} ${top}v${thick + 2}`, class: "beside" }, chart);
      if (box.rowHeight < LABELLED) return;
      const text = column.texts ? column.texts[k] : number(value, 2);
      const x = column.texts ? zero + room + 6 : Math.max(zero, end, beside) + 3;
      svg("text", { x, y: yOf(row) + 4, class: "value" }, chart, text);
    });
    if (column.foot) svg("text", { x: at.x, y: box.height - box.bottom + 16, class: "unit" }, chart, column.foot);
  }

  function drawMatrix() {
    const n = view.names.sites.length, cell = box.matrix / n, x = box.matrixX;
    const y = yOf(1) - box.rowHeight / 2, height = n * box.rowHeight;
    cells(chart, view.matrix, DEPTH, { x, y, width: box.matrix, height });
    svg("path", { d: `M${x} ${y}V${y + height}H${x + box.matrix}`, fill: "none", class: "axis" }, chart);
    svg("text", { x, y: HEADS.title, class: "head" }, chart, view.matrixTitle);
    svg("text", { x, y: HEADS.unit, class: "unit" }, chart, "row: who reads · column: what is read");
    const tick = (at, name) =>
      svg("text", { x: at, y: y + height + 14, "text-anchor": "middle", class: "unit" }, chart, name);
    tick(x + Math.min(0.5 * cell, 1.5 * cell - 20), "emb"); // clear of the first layer's
    const stride = 2 * Math.ceil(17 / cell); // whole layers, of two sources each
    for (let i = 1; i < n; i += stride) tick(x + (i + 0.5) * cell, view.names.sources[i].split(" ")[1] || String(i));
    const end = { x: x + box.matrix, y: y + height + 29, "text-anchor": "end", class: "unit" };
    svg("text", end, chart, "source (layer)");
    legend(x, y + height + 22, Math.min(110, box.matrix * 0.4));
    if (view.source !== null && view.source <= view.site)
      svg("rect", { x: x + view.source * cell, y: yOf(view.site + 1) - box.rowHeight / 2, width: Math.max(3, cell),
        height: box.rowHeight, class: "marker" }, chart);
    else svg("rect", { x, y: yOf(view.site + 1) - box.rowHeight / 2, width: cell * (view.site + 1),
      height: box.rowHeight, class: "marker" }, chart);
  }
  function legend(x, y, width) {
    const [lowest, , highest] = DEPTH.labels; // times the mean of the row
    gradient(chart, DEPTH, { x: x + 26, y, width: width - 52, height: 8 });
    svg("text", { x: x + 22, y: y + 8, "text-anchor": "end", class: "unit" }, chart, lowest);
    svg("text", { x: x + width - 22, y: y + 8, class: "unit" }, chart, highest);
  }
  return { update, chart };
}
