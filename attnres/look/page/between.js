// Two sides against each other: losses token by token, and what their sites read.

import { between, matrixFigure } from "../../report/charts/cells.js";
import { html } from "../../report/charts/dom.js";
import { nats, plural, signed } from "./texts.js";
import { tokenStrip } from "./tokens.js";

// What matrixFigure needs of a model, with a label every so many layers.
export function figureOf(model, name, description = "") {
  const label = (each) => ({ embedding: "emb", readout: "out" }[each] || each.split(" ")[1] || each);
  const ticks = (names) => { // the first, then whole layers of two sublayers each
    const stride = 2 * Math.ceil(names.length / 16), first = names[0] === "embedding" ? 1 : 0;
    return names.map((each, i) => [i, label(each)])
      .filter(([i]) => i === 0 || (i > first && (i - first) % stride === 0));
  };
  return { name, description, sites: model.sites, sources: model.sources, siteTicks: ticks(model.sites),
    sourceTicks: ticks(model.sources) };
}

const minus = (b, a) => (a === null || b === null ? null : b - a);

const bytesOf = (text) => new TextEncoder().encode(text).length;

// How many bytes of the text a token is: of a character that several share, its own part.
function ownBytes({ text: shown, start, stop }, text) {
  const covered = Array.from(text).slice(start, stop).join("");
  return covered === shown || !covered ? bytesOf(covered) : bytesOf(shown.replace(/\\x[0-9a-f]{2}/g, "."));
}

// Nats per byte, from the first place where tokens of both end: what stands before it, one of them may not predict.
function lossesPerByte(sides) {
  const ends = sides.map(({ picture: { tokens }, text }) => {
    let at = 0;
    return tokens.map((token) => (at += ownBytes(token, text)));
  });
  const common = sides[0].text === sides[1].text ? ends[0].find((end) => ends[1].includes(end)) : null;
  const found = sides.map(({ picture: { loss }, text }, side) => {
    const from = common === null ? ends[side][0] : common, bytes = bytesOf(text) - from;
    const counted = loss.filter((_, i) => i > 0 && ends[side][i - 1] >= from);
    const whole = bytes > 0 && !counted.includes(null);
    return { bytes, loss: whole ? counted.reduce((sum, each) => sum + each, 0) / bytes : null };
  });
  const where = common === null ? "" : ` of the last ${plural(found[0].bytes, "byte")}, which both predict`;
  return { losses: found.map(({ loss }) => loss), unit: `byte${where}, as their tokens differ` };
}

// Draws B against A, the second side against the first.
export function against(parent, [first, second], metric, choose) {
  const a = first?.picture, b = second?.picture;
  parent.hidden = !(a?.tokens.length && b?.tokens.length);
  parent.replaceChildren();
  if (parent.hidden) return;
  const same = a.tokens.length === b.tokens.length && a.tokens.every(({ id, text }, i) =>
    id === b.tokens[i].id && text === b.tokens[i].text);
  const { losses: [before, after], unit } = same ? { losses: [a.mean_loss, b.mean_loss], unit: "token" }
    : lossesPerByte([first, second]);
  parent.append(html("h2", {}, "B against A"));
  if (before !== null && after !== null)
    parent.append(html("p", {}, `mean loss ${nats(before)} → ${nats(after)} nats per ${unit} ` +
      `(${signed(after - before)})`));
  if (same) {
    const strip = tokenStrip(parent, (position) => choose({ position }));
    strip.strip.ariaLabel = "Difference of the losses, token by token";
    const values = b.loss.map((loss, i) => minus(loss, a.loss[i]));
    strip.update({ tokens: a.tokens, values, position: first.at().position, difference: true });
    parent.append(html("p", { className: "losses" }, "blue: B finds the token easier; orange: harder"));
  }
  matrices(parent, first, second, metric, choose);
}

function matrices(parent, first, second, metric, choose) {
  const [a, b] = [first, second].map((side) => side.read().matrix(metric));
  if (a.length !== b.length) {
    parent.append(html("p", {}, "The two have different depths, so their matrices have no difference."));
    return;
  }
  const difference = b.map((row, l) => row.map((value, i) => minus(value, a[l][i])));
  const largest = Math.max(...difference.flat().map((value) => Math.abs(value ?? 0)), 1e-6);
  const room = html("div", { className: "difference" });
  parent.append(room);
  const described = `${metric === "size" ? "weight × |v|" : "weight"}, at the chosen token`;
  matrixFigure(room, figureOf(first.model, "B − A", described), difference,
    between([-largest, largest]), choose);
}
