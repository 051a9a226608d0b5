// A text as its tokens, coloured by loss, with what was generated behind it; and the tokens that may come next.

import { html } from "../../report/charts/dom.js";
import { hideTooltip, showTooltip } from "../../report/charts/tooltip.js";
import { nats, percent, quoted, signed, unblank, visible } from "./texts.js";

const DARKEST = 6; // nats at which the colour is full: log(400)

// A strip of tokens. select(position) is called by click and arrow keys.
export function tokenStrip(parent, select) {
  const strip = html("div", { className: "strip", role: "listbox", tabIndex: 0, ariaLabel: "Tokens of the text" });
  parent.append(strip);
  let shown = null, drawn = [];
  strip.addEventListener("click", (event) => {
    const at = event.target.closest("[data-position]");
    if (at) select(Number(at.dataset.position));
  });
  strip.addEventListener("pointermove", (event) => {
    const at = event.target.closest(".token");
    if (at) showTooltip(at.getAttribute("aria-label"), event.clientX, event.clientY);
    else hideTooltip();
  });
  strip.addEventListener("pointerleave", hideTooltip);
  strip.addEventListener("keydown", (event) => {
    if (!shown || !shown.tokens.length) return;
    const last = shown.tokens.length - 1;
    const to = { ArrowLeft: shown.position - 1, ArrowRight: shown.position + 1, Home: 0, End: last,
      ArrowUp: shown.position - 10, ArrowDown: shown.position + 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(Math.max(0, Math.min(last, to)));
  });

  // next: {tokens, values, position, difference}: values are losses or, with `difference`, differences of two.
  function update(next) {
    if (!shown || shown.tokens !== next.tokens || shown.values !== next.values) draw(next);
    shown = next;
    for (const old of strip.querySelectorAll("[aria-selected=true]")) old.setAttribute("aria-selected", "false");
    const chosen = strip.querySelector(`[data-position="${next.position}"]`);
    if (!chosen) return;
    chosen.setAttribute("aria-selected", "true");
    strip.setAttribute("aria-activedescendant", chosen.id);
    const outside = chosen.offsetTop - strip.scrollTop;
    if (outside < 0 || outside > strip.clientHeight - 24) strip.scrollTop += outside - strip.clientHeight / 2;
  }
  function draw({ tokens, values, difference }) {
    const id = strip.id || (strip.id = `strip-${Math.random().toString(36).slice(2)}`);
    strip.replaceChildren(...tokens.flatMap((token, position) => {
      const value = values[position];
      const said = value === null || value === undefined ? "" : difference
        ? `\n${signed(value)} nats against the first` : `\nloss ${nats(value)} nats`;
      const element = html("span", { id: `${id}-${position}`, role: "option",
        className: PIECE.test(token.text) ? "token piece" : "token",
        ariaLabel: `token ${position}: ${quoted(token.text)}${said}` }, shownText(token.text));
      element.dataset.position = position;
      element.setAttribute("aria-selected", "false");
      const strength = Math.min(1, Math.abs(value ?? 0) / (difference ? 2 : DARKEST));
      element.style.setProperty("--strength", `${Math.round(70 * strength)}%`);
      if (difference && value < 0) element.classList.add("better");
      return token.text.includes("\n") ? [element, html("br", {})] : [element];
    }));
    drawn = [];
    if (!tokens.length) strip.append(html("span", { className: "none" }, "no tokens: the text is empty"));
  }
  // One more generated token, or none: what was generated is taken away.
  function add(message) {
    if (!message) { drawn.forEach((element) => element.remove()); drawn = []; return; }
    const others = message.likeliest.map(({ text, probability }) => `${quoted(text)} ${percent(probability)}`);
    const piece = PIECE.test(message.token.text) ? "piece " : "";
    const element = html("span", { className: `token ${piece}drawn`, role: "option",
      ariaLabel: `generated: ${quoted(message.token.text)}, ${percent(message.probability)} likely\n` +
        `likeliest: ${others.join(", ")}` }, shownText(message.token.text));
    element.setAttribute("aria-selected", "false");
    drawn.push(element);
    strip.append(element);
    if (message.token.text.includes("\n")) { const line = html("br", {}); drawn.push(line); strip.append(line); }
    strip.scrollTop = strip.scrollHeight;
  }
  return { update, add, strip };
}

const PIECE = /^\\x[0-9a-f]{2}$/; // a byte of a character that several tokens share
const shownText = (text) => (PIECE.test(text) ? text.slice(2) : visible(text) || "∅");

// Rows of the likeliest next tokens, of which `actual` is the one that follows, as `note` says; choose(id) makes one
// the token whose logit is taken apart.
export function nextTokens(parent, choose) {
  const list = html("ol", { className: "next" });
  parent.append(list);
  return (likeliest, { actual, note: told, target }) => {
    list.replaceChildren(...likeliest.map((token) => {
      const note = actual === token.id ? ` ← ${told}` : "";
      const bar = html("span", { className: "probability" });
      bar.style.setProperty("--p", `${100 * (token.probability ?? 0)}%`);
      const button = html("button", { type: "button", ariaPressed: String(token.id === target),
        title: "take this token's logit apart" }, bar, html("code", {}, unblank(token.text)),
      html("span", {}, percent(token.probability) + note));
      button.addEventListener("click", () => choose(token.id));
      return html("li", {}, button);
    }));
  };
}
