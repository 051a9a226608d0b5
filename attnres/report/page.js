"use strict";
// Draws the charts of the page from the JSON beside this script. Texts only ever enter the page as text nodes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tooltip = document.getElementById("tooltip");
  const hiddenArms = new Set();
  let view = 0; // 0: mean over tokens; k + 1: chosen token k
  let normalised = false;
  let logarithmic = true;

  const SVG = "http://www.w3.org/2000/svg";
  function svg(tag, attributes, parent, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }
  function html(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }
  const number = (value, digits = 3) => {
    if (value === null || value === undefined) return "not finite";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e5 || size < 1e-4)) return value.toExponential(1);
    return String(Number(value.toPrecision(digits)));
  };

  const decimals = (loss) => (loss === null ? "not finite" : loss.toFixed(3));

  // x and y are the window's; the tooltip stands in the page, so that scrolling keeps it beside its cell.
  function showTooltip(text, x, y) {
    tooltip.textContent = text;
    tooltip.hidden = false;
    tooltip.style.left = tooltip.style.top = "0";
    const box = tooltip.getBoundingClientRect();
    const left = x + 16 + box.width > document.body.clientWidth ? x - box.width - 12 : x + 16;
    tooltip.style.left = `${Math.max(4, left) + scrollX}px`;
    tooltip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - box.height - 4)) + scrollY}px`;
  }
  const hideTooltip = () => { tooltip.hidden = true; };

  // Pointer and arrow keys move a cursor in a chart. pick(x, y) -> cursor; step(cursor, dx, dy) -> cursor;
  // show(cursor) -> {text, x, y} in the chart's own pixels, or null.
  function interactive(chart, pick, step, show, clear) {
    let cursor = null;
    const display = (next) => {
      const shown = next && show(next);
      if (!shown) return;
      cursor = next;
      const box = chart.getBoundingClientRect();
      showTooltip(shown.text, box.left + shown.x, box.top + shown.y);
    };
    const leave = () => { clear(); hideTooltip(); };
    const point = (event) => {
      const box = chart.getBoundingClientRect();
      const next = pick(event.clientX - box.left, event.clientY - box.top);
      if (next) display(next); else leave();
    };
    chart.addEventListener("pointermove", point);
    chart.addEventListener("pointerdown", point);
    chart.addEventListener("pointerleave", leave);
    chart.addEventListener("blur", leave);
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") leave();
      if (!move) return;
      event.preventDefault();
      display(step(cursor, ...move));
    });
  }

  // ---- line charts ----

  function linearTicks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
    return ticks;
  }
  // As few of 1 to 9 times the powers of ten as give at least three ticks.
  function logTicks(low, high) {
    const powers = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) powers.push(k);
    const stride = Math.ceil(powers.length / 8);
    let ticks = [];
    for (const factors of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
      ticks = powers.filter((_, i) => i % stride === 0).flatMap((k) => factors.map((factor) => factor * 10 ** k));
      ticks = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
      if (ticks.length >= 3) break;
    }
    return ticks;
  }

  // lines: {name, colour, dashes, wide?, x, y, low?, high?}; options: {title, xLabel, ticks?, log, zero, label(x)}
  function lineChart(parent, lines, options) {
    const figure = html("figure", {}, html("figcaption", {}, options.title));
    parent.append(figure);
    const width = Math.max(240, figure.clientWidth), height = 280;
    const left = 56, right = width - 14, top = 10, bottom = height - 40;
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
    const xLow = Math.min(...xs), xHigh = Math.max(...xs, xLow + 1);
    const scaleX = (x) => left + ((x - xLow) / (xHigh - xLow)) * (right - left);
    const f = options.log ? Math.log : (y) => y;
    const scaleY = (y) => bottom - ((f(y) - f(low)) / (f(high) - f(low))) * (bottom - top);

    for (const tick of options.log ? logTicks(low, high) : linearTicks(low, high, 7)) {
      svg("line", { x1: left, x2: right, y1: scaleY(tick), y2: scaleY(tick), class: "axis" }, chart);
      svg("text", { x: left - 6, y: scaleY(tick) + 4, "text-anchor": "end" }, chart, number(tick));
    }
    for (const [x, label] of options.ticks || linearTicks(xLow, xHigh, width / 90).map((x) => [x, number(x, 6)])) {
      svg("line", { x1: scaleX(x), x2: scaleX(x), y1: bottom, y2: bottom + 4, class: "axis" }, chart);
      svg("text", { x: scaleX(x), y: bottom + 17, "text-anchor": "middle" }, chart, label);
    }
    svg("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, chart, options.xLabel);

    for (const line of lines) {
      const at = (ys) => line.x.map((x, i) => (usable(ys[i]) ? [scaleX(x), scaleY(ys[i])] : null));
      if (line.low) {
        const lower = at(line.low), upper = at(line.high);
        const ring = [...upper.filter(Boolean), ...lower.filter(Boolean).reverse()];
        svg("polygon", { points: ring.map((p) => p.join()).join(" "), fill: line.colour, opacity: 0.15 }, chart);
      }
      if (line.x.length <= 12) { // few points, perhaps one: show where they are
        for (const p of at(line.y)) if (p) svg("circle", { cx: p[0], cy: p[1], r: 3, fill: line.colour }, chart);
      }
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
    const nearest = (value) => columns.reduce(
      (best, x, i) => (Math.abs(x - value) < Math.abs(columns[best] - value) ? i : best), 0);
    interactive(chart,
      (px) => ({ i: nearest(xLow + ((px - left) / (right - left)) * (xHigh - xLow)) }),
      (cursor, dx) => ({ i: Math.max(0, Math.min(columns.length - 1, cursor ? cursor.i + dx : 0)) }),
      ({ i }) => {
        const x = columns[i], rows = [];
        for (const line of lines) {
          const k = line.x.indexOf(x);
          if (k < 0) continue;
          const spread = line.low && line.seeds > 1 ? ` (${decimals(line.low[k])} to ${decimals(line.high[k])})` : "";
          const shown = line.low ? decimals(line.y[k]) : number(line.y[k]);
          rows.push({ y: line.y[k], text: `${line.name}: ${shown}${spread}` });
        }
        rows.sort((a, b) => (b.y ?? -Infinity) - (a.y ?? -Infinity));
        for (const end of ["x1", "x2"]) guide.setAttribute(end, scaleX(x));
        guide.setAttribute("visibility", "visible");
        return { text: [options.label(x), ...rows.map((row) => row.text)].join("\n"), x: scaleX(x), y: top };
      },
      () => guide.setAttribute("visibility", "hidden"));
  }

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
    return matrix.map((row) => {
      const total = row.reduce((sum, value) => sum + Math.abs(value), 0);
      return row.map((value) => (value === null || total === 0 ? null : Math.abs(value) / total));
    });
  }
  function colourOf(value, [low, high]) {
    const colours = low < 0 ? data.signedColours : data.weightColours;
    const at = Math.max(0, Math.min(1, (value - low) / (high - low))) * (colours.length - 1);
    const i = Math.min(Math.floor(at), colours.length - 2);
    return colours[i].map((c, k) => Math.round(c + (at - i) * (colours[i + 1][k] - c)));
  }
  const GREY = [140, 140, 140];

  function pixels(matrix, scale) {
    const canvas = html("canvas", { width: matrix.length, height: matrix.length });
    const context = canvas.getContext("2d");
    const image = context.createImageData(matrix.length, matrix.length);
    matrix.forEach((row, site) => row.forEach((value, source) => {
      image.data.set([...(value === null ? GREY : colourOf(value, scale)), 255], 4 * (site * matrix.length + source));
    }));
    context.putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  function colourBar(chart, scale, clipped, left, top, width) {
    const [low, high] = scale, steps = 64;
    for (let i = 0; i < steps; i++) {
      const colour = colourOf(low + ((i + 0.5) / steps) * (high - low), scale);
      const x = left + (i / steps) * width;
      svg("rect", { x, y: top, width: width / steps + 0.5, height: 10, fill: `rgb(${colour})` }, chart);
    }
    const labels = [
      [0, low, clipped && low < 0 ? "≤ " : ""], [0.5, (low + high) / 2, ""], [1, high, clipped ? "≥ " : ""]];
    for (const [at, value, sign] of labels) {
      const anchor = ["start", "middle", "end"][at * 2];
      svg("text", { x: left + at * width, y: top + 24, "text-anchor": anchor }, chart, sign + number(value, 2));
    }
  }

  function drawMatrix(parent, arm) {
    const profile = arm.profile, matrix = shownMatrix(profile), n = matrix.length;
    const scale = normalised ? profile.shareScale : profile.matrixScale;
    const figure = html("figure", {}, html("figcaption", {}, arm.name, html("small", {}, arm.description)));
    figure.dataset.arm = arm.name;
    parent.append(figure);
    const width = Math.max(200, figure.clientWidth), left = 44, top = 4;
    const size = width - left - 6, height = top + size + 74;
    const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `Depth matrix of ${arm.name}: ${n} sites by ${n} sources. Arrow keys read out single weights.`,
    }, figure);
    svg("image", { href: pixels(matrix, scale), x: left, y: top, width: size, height: size, class: "cells",
      preserveAspectRatio: "none", style: "image-rendering: pixelated" }, chart);
    const cell = size / n;
    svg("path", { d: `M${left} ${top}V${top + size}H${left + size}`, fill: "none", class: "axis" }, chart);
    for (const [i, label] of profile.sourceTicks)
      svg("text", { x: left + (i + 0.5) * cell, y: top + size + 14, "text-anchor": "middle" }, chart, label);
    for (const [i, label] of profile.siteTicks)
      svg("text", { x: left - 5, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, chart, label);
    svg("text", { x: left + size / 2, y: top + size + 29, "text-anchor": "middle" }, chart, "source (layer)");
    const upwards = `translate(11 ${top + size / 2}) rotate(-90)`;
    svg("text", { x: 0, y: 0, "text-anchor": "middle", transform: upwards }, chart, "site that reads (layer)");
    const clipped = matrix.slice(1).some((row) => row.some((value) => Math.abs(value) > scale[1] * 1.001));
    colourBar(chart, scale, clipped, left, top + size + 40, size);

    const marker = svg("rect", { width: cell, height: cell, class: "marker", visibility: "hidden" }, chart);
    interactive(chart,
      (px, py) => {
        const source = Math.floor((px - left) / cell), site = Math.floor((py - top) / cell);
        return source >= 0 && site < n && source <= site ? { site, source } : null;
      },
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
        const text = `${profile.sites[site]} reads ${weight} of ${profile.sources[source]}`;
        return { text, x: x + cell, y: y + cell };
      },
      () => marker.setAttribute("visibility", "hidden"));
  }

  function drawMatrices() {
    const parent = document.getElementById("matrix-charts");
    parent.replaceChildren();
    for (const arm of data.arms) if (arm.profile) drawMatrix(parent, arm);
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
})();
