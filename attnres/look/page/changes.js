// The tools that change what depth reads, and the list of what is changed.

import { html } from "../../report/charts/dom.js";
import { told } from "./texts.js";

const field = (label, ...children) => html("label", {}, `${label} `, ...children);

// app: {side() -> the side that is changed, change(changes), undo, redo, canUndo, canRedo, say(text)}
export function changeTools(parent, app) {
  const sites = choice("where", [["site", "this site"], ["all", "all sites"]]);
  const tokens = choice("when", [["all", "all tokens"], ["token", "this token"]]);
  const factor = html("input", { type: "number", step: "0.1", value: "2", ariaLabel: "factor" });
  const weight = html("input", { type: "number", step: "0.05", value: "0.5", ariaLabel: "weight" });
  const prompt = html("input", { type: "text", placeholder: "another prompt", ariaLabel: "prompt to patch from" });
  const subject = html("p", { className: "subject" });
  const list = html("ol", { className: "changes", ariaLabel: "What is changed" });
  const off = button("Switch off", () => add({ kind: "Off", source: Math.min(at().site + 1, last()) }));
  const undo = button("Undo", app.undo), redo = button("Redo", app.redo);
  const clear = button("Clear all", () => app.change([]));
  const copy = button("Copy as Python", async () => {
    const python = app.side().picture?.python || "";
    try { await navigator.clipboard.writeText(python); app.say("Copied."); } catch { app.say("Select it below."); }
    code.textContent = python;
    code.hidden = false;
  });
  const code = html("pre", { hidden: true, tabIndex: 0, ariaLabel: "The changes as Python" });
  const ofSource = html("div", { className: "tools", role: "group", ariaLabel: "Change the selected source" },
    button("Mute", () => mute()),
    html("span", {}, button("Scale ×", () => add({ kind: "Scale", by: factor.valueAsNumber })), factor),
    html("span", {}, button("Pin weight at", () => add({ kind: "Pin", weight: weight.valueAsNumber })), weight),
    html("span", {}, button("Swap for that of", () => add({ kind: "Patch", prompt: prompt.value })), prompt));
  const ofRow = html("div", { className: "tools", role: "group", ariaLabel: "Change the selected site" }, off,
    button("Equal weights", () => add({ kind: "Uniform" }, false)),
    button("Plain residual", () => add({ kind: "Plain" }, false)));
  parent.append(subject, html("div", { className: "tools" }, field("in", sites), field("at", tokens)), ofRow, ofSource,
    html("div", { className: "tools" }, undo, redo, clear, copy), list, code);

  function choice(name, options) {
    return html("select", { name }, ...options.map(([value, text]) => html("option", { value }, text)));
  }
  function button(text, act) {
    const made = html("button", { type: "button" }, text);
    made.addEventListener("click", act);
    return made;
  }
  const at = () => app.side().at();
  const last = () => app.side().asked().sites.length - 1;
  // change: what analysis calls it, with the arguments that are its own
  function add(change, ofSource = true) {
    const { site, source, position } = at();
    const missing = ofSource && change.source === undefined && source === null
      ? "Choose a source first: click a bar or a cell."
      : change.prompt === "" ? "Write the other prompt first."
      : Number.isFinite(change.by ?? change.weight ?? 0) ? "" : "Write a number first.";
    app.say(missing);
    if (missing) return;
    const full = { ...ofSource && { source }, ...change, tokens: tokens.value === "token" ? [position] : null };
    if (change.kind !== "Off") full.sites = sites.value === "all" ? null : [site];
    app.change([...app.side().spec.changes, full]);
  }
  const mute = () => add({ kind: "Mute" });
  const switchOff = () => { if (!off.disabled) off.click(); };

  function update() {
    const side = app.side();
    if (!side) return;
    const model = side.asked();
    const { site, source } = at();
    const named = source === null ? "no source chosen yet: click a bar or a cell" : model.sources[source];
    subject.replaceChildren(html("b", {}, named), " as read by ", html("b", {}, model.sites[site]));
    for (const made of ofSource.querySelectorAll("button")) made.disabled = source === null;
    off.textContent = site < last() ? `Switch off ${model.sites[site]}` : "Switch off";
    off.disabled = site >= last();
    const { changes } = side.spec;
    parent.classList.toggle("at-hand", source !== null || changes.length > 0);
    list.replaceChildren(...changes.map((change, k) => {
      const remove = button("×", () => app.change(changes.filter((_, other) => other !== k)));
      remove.ariaLabel = `Take back: ${told(change, model)}`;
      return html("li", {}, told(change, model), remove);
    }));
    if (!changes.length) list.append(html("li", { className: "none" }, "nothing is changed"));
    undo.disabled = !app.canUndo();
    redo.disabled = !app.canRedo();
    clear.disabled = copy.disabled = !changes.length;
    if (!changes.length) code.hidden = true;
    else if (!code.hidden) code.textContent = side.picture?.python || "";
  }
  return { update, mute, switchOff };
}
