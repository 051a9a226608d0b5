// How the page writes tokens, names and numbers.

import { number } from "../../report/charts/dom.js";

// Nothing hidden in a text: control and formatting characters become symbols or their code points.
export const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
  const code = character.codePointAt(0);
  if (character === "\n") return "⏎";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
});
// Blanks alone would not be seen.
export const unblank = (text) => (/^ +$/.test(text) ? "␣".repeat(text.length) : visible(text));
export const quoted = (text) => `“${unblank(text)}”`;
export const brief = (text) => quoted(text.length > 7 ? `${text.slice(0, 6)}…` : text);
export const percent = (p) =>
  p === null ? "not finite" : `${p >= 0.995 ? (100 * p).toFixed(1) : number(100 * p, 2)}%`;
export const signed = (value, digits = 3) =>
  value === null || value === undefined ? "–" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
export const nats = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// What a change does, for the list of changes.
export function told(change, model) {
  const source = model.sources[change.source];
  const sites = !change.sites ? "everywhere"
    : change.sites.length > 2 ? `at ${change.sites.length} sites`
    : `in ${change.sites.map((site) => model.sites[site]).join(" and ")}`;
  const tokens = !change.tokens ? "" : ` at token ${change.tokens.join(", ")}`;
  return {
    Mute: () => `mute ${source} ${sites}${tokens}`,
    Scale: () => `${source} × ${number(change.by)} ${sites}${tokens}`,
    Pin: () => `weight of ${source} = ${number(change.weight)} ${sites}${tokens}`,
    Patch: () => `${source} from ${quoted(change.prompt.slice(0, 24))} ${sites}${tokens}`,
    Off: () => `${source} off${tokens}`,
    Uniform: () => `equal weights ${sites}${tokens}`,
    Plain: () => `plain residual ${sites}${tokens}`,
  }[change.kind]();
}
