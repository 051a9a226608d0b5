// One token of a picture: what each site reads there, in numbers and in words. Knows nothing of the page.

import { shares } from "../../report/charts/cells.js";
import { number } from "../../report/charts/dom.js";
import { brief, percent, plural, quoted, signed } from "./texts.js";

export const COLUMNS = [["weight", "weight"], ["size", "weight × |v|"], ["share", "part of the logit"],
  ["lens", "logit lens"], ["effect", "removal costs"]];

const finite = (value) => (value === null || Number.isFinite(value) ? value : null);

// Rows 0 .. sites - 1 of a triangle that stands row by row in `values`.
const triangle = (values, sites) => Array.from({ length: sites }, (_, l) =>
  Array.from(values.slice((l * (l + 1)) / 2, ((l + 1) * (l + 2)) / 2), finite));

export class Reading {
  // weights [T, triangle] and sizes [T, sources] are the picture's numbers; explanation: of this token, or null;
  // effects: Map from source to Effect, measured at effects.site.
  constructor(model, token, position, weights, sizes, explanation, effects) {
    const n = model.sites.length, each = (n * (n + 1)) / 2;
    Object.assign(this, { model, token, position, explanation, effects });
    this.loudness = Array.from(sizes.subarray(position * n, (position + 1) * n), finite);
    this.weights = triangle(weights.subarray(position * each, (position + 1) * each), n);
    this.sizes = explanation ? triangle(explanation.size, n)
      : this.weights.map((row) => row.map((weight, i) => this.#size(weight, this.loudness[i])));
    this.shares = explanation ? triangle(explanation.share, n) : null;
  }

  // |M v| from the weight and |v|; where weights differ by channel it does not follow from their mean.
  #size(weight, loudness) {
    return this.model.per_channel || weight === null || loudness === null ? null : Math.abs(weight) * loudness;
  }
  matrix(metric) { return metric === "size" ? this.sizes : this.weights; }
  #effect(site, source) { return this.effects.site === site ? this.effects.get(source) ?? null : null; }

  // The columns beside the path for one site: values for the rows from `first` on.
  columns(site, ids) {
    const { explanation: own, weights, sizes } = this, target = own ? brief(own.target.text) : "…";
    const effects = weights[site].map((_, source) => this.#effect(site, source));
    const likeliest = ({ likeliest: [first] }) => `${brief(first.text)} ${percent(first.probability)}`;
    const made = {
      weight: () => ({ title: "weight", unit: "", values: weights[site], first: 0 }),
      size: () => ({ title: "weight × |v|", unit: "its size", values: sizes[site], first: 0,
        foot: own || !this.model.per_channel ? "" : "not known here" }),
      share: () => ({ title: "logit part", unit: `of ${target}`, first: 0,
        values: this.shares ? this.shares[site] : [], foot: own ? this.closing(site) : "" }),
      lens: () => ({ title: "logit lens", unit: `p of ${target} · top`, first: 1,
        values: own ? own.lens.map((row) => row.probability) : [], texts: own ? own.lens.map(likeliest) : [] }),
      effect: () => ({ title: "removal", unit: "nats ▏random", first: 0,
        foot: effects.some(Boolean) ? "" : "not measured yet",
        values: effects.map((effect) => effect?.removed ?? null),
        marks: effects.map((effect) => effect?.random ?? null) }),
    };
    return ids.map((id) => ({ id, ...made[id]() }));
  }

  // That what the sources add is the logit.
  closing(site) {
    if (this.explanation.lens[site].logit === null) return "the logit is not finite";
    const sum = this.shares[site].reduce((total, value) => total + (value ?? 0), 0);
    const rest = this.explanation.rest[site], { logit } = this.explanation.lens[site];
    const shown = Math.abs(rest ?? 0) > 5e-4 * Math.max(1, Math.abs(logit)) ? ` ${signed(rest, 2)} rest` : "";
    return `Σ ${number(sum, 4)}${shown} = logit ${number(logit, 4)}`;
  }

  #most(site) {
    const parts = shares(this.weights[site]).map((share, source) => ({ share, source }));
    return parts.sort((a, b) => b.share - a.share);
  }

  describe(site, source) {
    const { sites, sources } = this.model, row = this.weights[site];
    if (source === null) {
      const best = this.#most(site).slice(0, 3).map(({ source: i }) => `${number(row[i])} of ${sources[i]}`);
      return [`${sites[site]} reads`, ...best].join("\n");
    }
    const lines = [`${sites[site]} reads ${number(row[source])} of ${sources[source]}`,
      `weight × |v|: ${number(this.sizes[site][source])}`];
    if (this.shares) {
      const target = quoted(this.explanation.target.text);
      lines.push(`adds ${signed(this.shares[site][source], 2)} to the logit of ${target}`);
    }
    const effect = this.#effect(site, source);
    if (effect)
      lines.push(`removing it costs ${signed(effect.removed, 4)} nats`,
        `a random vector as large in its place: ${signed(effect.random, 4)}`);
    return lines.join("\n");
  }

  // [who, does what]: the largest weights.
  sentence(site) {
    const row = this.weights[site], parts = this.#most(site);
    if (parts.length > 3 && parts[0].share < 1.1 * parts.at(-1).share) {
      const ends = new Set([Math.min(...row), Math.max(...row)].map((weight) => number(weight, 2)));
      return [this.model.sites[site], `reads all ${parts.length} sources alike, ${[...ends].join(" to ")} of each.`];
    }
    const named = parts.slice(0, 3).map(({ source }) => `${number(row[source], 2)} of ${this.model.sources[source]}`);
    const others = parts.length > 3 ? ` and ${plural(parts.length - 3, "other source")}` : "";
    return [this.model.sites[site], `reads ${named.join(", ")}${others}.`];
  }

  // The site to begin with: where what is read is furthest from equal parts; null where all sites read equal parts.
  telling() {
    const distance = (row) => shares(row).reduce((sum, share) => sum + Math.abs((share ?? 0) - 1 / row.length), 0) / 2;
    const distances = this.weights.map(distance), most = Math.max(...distances);
    return most > 0.1 ? distances.indexOf(most) : null;
  }
}
