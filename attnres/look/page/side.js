// One model on one text: its tokens, what may come next, and the depth of the chosen token.

import { html, number } from "../../report/charts/dom.js";
import { Failed, Lost, ask, numbers } from "./client.js";
import { depthPicture } from "./depth.js";
import { Reading } from "./reading.js";
import { nextTokens, tokenStrip } from "./tokens.js";
import { nats, quoted, signed, told } from "./texts.js";

const WIDE = 1000; // pixels from which on four columns fit
const WIDEST = 1200; // and five
const NARROW = 620; // and below which the matrix stands under the picture

const noEffects = () => Object.assign(new Map(), { site: null });

export class Side {
  // app: {state, saved, session(), modelOf(id), text(), sides(), active(), shared(chosen), act(side), asked(side),
  //       remove(side), pictured(side), telling(), changed(), lost(), found(), renew(), key(event), drawMatrix(..)};
  // spec: {model, step, text, read, changes}, kept in the address
  constructor(parent, app, spec) {
    Object.assign(this, { app, spec, picture: null, model: null, text: "", explanation: null, effects: noEffects() });
    this.work = {}; // AbortController of what is under way, by its kind
    this.asking = 0;
    this.drawn = ""; // what was generated behind the text
    this.soon = null;
    this.#build(parent);
    this.#listen();
  }

  #build(parent) {
    const { app } = this, live = { className: "live" };
    this.title = html("h2", {});
    this.models = html("select", { ...live, ariaLabel: "Model" });
    this.step = html("input", { type: "range", min: 0, step: 1, ariaLabel: "Step of the run" });
    this.stepText = html("output", {});
    this.steps = html("label", { className: "steps live" }, "step ", this.step, this.stepText);
    this.reads = html("select", { ...live, ariaLabel: "Which of the mixtures that a site reads" });
    this.close = html("button", { ...live, type: "button", ariaLabel: "Take this side away" }, "×");
    this.about = html("p", { className: "about" });
    this.ownText = html("textarea", { ...live, rows: 2, ariaLabel: "Text of this side", spellcheck: false });
    this.status = html("p", { className: "status", role: "status" });
    this.sentence = html("p", { className: "sentence" });
    this.losses = html("p", { className: "losses" });
    this.expected = html("h3", {});
    this.right = html("div", { className: "expects" }, this.expected);
    const left = html("div", {});
    this.reading = html("div", { className: "reading" }, left, this.right);
    this.depth = html("div", { className: "depth-room" });
    this.below = html("div", { className: "depth-room" });
    this.root = html("section", { className: "side" },
      html("div", { className: "head" }, this.title, this.models, this.reads, this.steps, this.about, this.close),
      this.ownText, this.status, this.reading, this.sentence, legend(), this.depth, this.below);
    parent.append(this.root);
    this.strip = tokenStrip(left, (position) => app.shared({ position }));
    left.append(this.losses);
    this.expects = nextTokens(this.right, (id) => app.shared({ target: { id, tokens: this.model.tokens } }));
    this.drawing = depthPicture(this.depth, (chosen) => { app.act(this); app.shared(chosen); }, app.key);
  }

  #listen() {
    const { app, spec } = this;
    this.models.addEventListener("change", () => {
      Object.assign(spec, { model: this.models.value, step: null, read: null, changes: [] });
      app.asked(this);
      this.refresh();
    });
    this.step.addEventListener("input", () => {
      const { steps } = this.asked(), at = Number(this.step.value);
      spec.step = at === steps.length - 1 ? null : steps[at];
      this.stepText.textContent = ` ${steps[at]}`;
      this.refreshSoon();
    });
    this.reads.addEventListener("change", () => {
      spec.read = this.reads.value === "" ? null : Number(this.reads.value);
      this.refresh();
    });
    this.ownText.addEventListener("input", () => { spec.text = this.ownText.value; this.refreshSoon(); });
    this.close.addEventListener("click", () => app.remove(this));
    this.root.addEventListener("pointerdown", () => app.act(this));
  }

  // ---- what is chosen ----

  // The model that was asked for. `this.model` is that of the picture, which may still be of the one before.
  asked() { return this.app.modelOf(this.spec.model); }
  view() {
    return { ...this.spec, text: this.spec.text ?? this.app.text() };
  }
  // What is asked about the picture is asked of its step: the newest may be another by then.
  shown() {
    const { model, step } = this.spec;
    return { ...this.view(), step: this.model?.id === model ? this.picture.step : step };
  }
  at() {
    const { state } = this.app, last = (this.model ?? this.asked()).sites.length - 1;
    const tokens = this.picture?.tokens.length ?? 0, site = Math.min(last, state.site ?? this.app.telling() ?? last);
    return { site, source: state.source === null || state.source > site ? null : state.source,
      position: Math.max(0, Math.min(tokens - 1, state.position ?? tokens - 1)) };
  }
  read() {
    if (!this.picture?.tokens.length) return null;
    const { position } = this.at();
    const explanation = this.explanation?.position === position ? this.explanation : null;
    return new Reading(this.model, this.picture.tokens[position], position, this.weights, this.sizes, explanation,
      this.effects);
  }

  // ---- questions to the server: a newer one of a kind stops the older ----

  async #ask(kind, body, receive) {
    this.work[kind]?.abort();
    const controller = this.work[kind] = new AbortController();
    this.asking += 1;
    this.#mark();
    let refused = false;
    try {
      await ask(kind, body, (message) => {
        this.app.found();
        if (message.kind !== "progress") receive(message);
        else this.say(`${message.what}: ${number(message.done)} of ${number(message.total)}`);
      }, controller.signal);
      this.say("");
      return true;
    } catch (error) {
      if (error.name === "AbortError") return false;
      if (error instanceof Lost) this.app.lost();
      else if (error instanceof Failed) {
        this.say(error.message, true);
        refused = true;
        if (kind === "look") this.#unanswered();
        this.app.renew();
      } else throw error;
      return false;
    } finally {
      this.asking -= 1;
      this.#mark();
      // A refused text or change leaves the picture of what was before: dimmed, for it is not of what is written.
      if (kind === "look" && this.work.look === controller) this.root.classList.toggle("stale", refused);
    }
  }
  #mark() { this.root.setAttribute("aria-busy", this.asking > 0 || this.soon !== null); }
  say(text, wrong = false) {
    this.status.textContent = text;
    this.status.classList.toggle("wrong", wrong);
  }
  stop() { for (const controller of Object.values(this.work)) controller.abort(); }
  destroy() {
    clearTimeout(this.soon);
    this.stop();
    this.root.remove();
  }
  // Typing and sliding never wait: the newest is asked for when the fingers rest.
  refreshSoon() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.refresh(), 200);
    this.#mark();
  }

  async refresh() {
    clearTimeout(this.soon);
    this.soon = null;
    this.stop();
    this.root.classList.add("stale");
    const model = this.asked(), view = this.view();
    if (!await this.#ask("look", { view }, (picture) => this.#take(picture, model, view))) return;
    if (!model.steps.includes(this.picture.step)) await this.app.renew();
    this.app.pictured(this);
    this.render();
    this.app.changed();
    await this.explain();
  }
  // The picture stays, but not under the name of another model.
  #unanswered() {
    if (this.model?.id !== this.spec.model)
      Object.assign(this, { picture: null, model: null, explanation: null, effects: noEffects() });
    this.render();
    this.app.changed();
  }
  // The session was asked for again; `before` is how it described the model until then.
  renewed(before) {
    const newest = this.asked().steps.at(-1);
    this.render();
    if (this.spec.step === null && newest !== before?.steps.at(-1) && newest !== this.picture?.step) this.refresh();
  }
  #take(picture, model, { text, changes }) {
    Object.assign(this, { picture, model, text, changes, explanation: null, effects: noEffects() });
    this.#forgetDrawn();
    this.weights = numbers(picture.weights);
    this.sizes = numbers(picture.size);
  }
  async explain() {
    if (this.app.saved || !this.picture?.tokens.length) return;
    const { target: chosen } = this.app.state; // an id is another token, or none, where a side has other tokens
    const target = chosen?.tokens === this.asked().tokens ? chosen.id : null;
    const body = { view: this.shown(), position: this.at().position, target };
    if (await this.#ask("explain", body, (message) => { this.explanation = message; })) this.render();
  }
  // What removing each source of the chosen site costs, at all tokens.
  async measure() {
    const { site } = this.at();
    const effects = this.effects = Object.assign(new Map(), { site });
    await this.#ask("remove", { view: this.shown(), site }, (effect) => {
      effects.set(effect.source, effect);
      this.say(`removal: ${effect.source + 1} of ${site + 1} sources`);
      this.render();
    });
  }
  async carryOn(temperature) {
    this.#forgetDrawn();
    let end = "", before = this.picture?.tokens.at(-1)?.text ?? "";
    const done = await this.#ask("continue", { view: this.shown(), temperature }, (message) => {
      this.drawn += message.text;
      if (message.kind === "ended" && message.reason !== "count") end = `The continuation ends: ${message.reason}.`;
      if (message.kind !== "drawn") return;
      this.strip.add(message);
      this.expected.textContent = `After ${quoted(before)} the model expects`;
      this.expects(message.likeliest, { actual: message.token.id, note: "drawn" });
      before = message.token.text;
    });
    if (this.drawn !== this.keepable()) end += " Some of its bytes are no characters: what is before them can be kept.";
    if (done) this.say(end.trim());
  }
  #forgetDrawn() {
    this.drawn = "";
    this.strip.add(null);
  }
  // What was drawn, up to a byte that no text stands for: written as a text, it would be other tokens.
  keepable() { return this.drawn.split("\uFFFD", 1)[0]; }
  // Make what was generated a part of the text.
  keepDrawn() {
    const kept = this.keepable();
    if (this.spec.text === null) { this.app.write(this.app.text() + kept); return; }
    this.ownText.value += kept;
    this.ownText.dispatchEvent(new Event("input"));
  }

  // ---- drawing ----

  // Whether all columns stand beside the path, or the one that is chosen.
  isWide() { return this.root.clientWidth >= WIDE; }

  render() {
    this.#renderHead();
    const { picture } = this, tokens = picture?.tokens ?? [];
    this.reading.hidden = !picture;
    for (const part of [this.depth, this.below, this.sentence, this.right]) part.hidden = !tokens.length;
    if (!picture) return;
    const { site, source, position } = this.at();
    this.strip.update({ tokens, values: picture.loss, position });
    this.losses.textContent = lossText(picture);
    this.losses.dataset.loss = picture.mean_loss ?? "";
    const read = this.read();
    if (!read) return;
    this.expected.textContent = `After ${quoted(tokens[position].text)} the model expects`;
    this.expects(picture.next[position],
      { actual: tokens[position + 1]?.id, note: "in the text", target: read.explanation?.target.id });
    const [who, what] = read.sentence(site);
    this.sentence.replaceChildren(html("b", {}, quoted(tokens[position].text)), ` (token ${position}): `,
      html("b", {}, who), ` ${what}`);
    this.#draw(read, site, source);
  }

  #renderHead() {
    const { app, spec } = this, { models } = app.session(), described = this.asked(), many = app.sides().length > 1;
    this.title.textContent = (many ? `${"ABC"[app.sides().indexOf(this)]}: ` : "") + described.name;
    this.about.textContent = `${described.connection} · ${described.description}` +
      (described.per_channel ? " · weights differ by channel: their mean is shown" : "");
    this.models.hidden = models.length < 2;
    const listed = Array.from(this.models.options, ({ value }) => value);
    if (listed.join() !== models.map(({ id }) => id).join()) // not under the hand that has the list open
      this.models.replaceChildren(...models.map(({ id, name }) => html("option", { value: id }, name)));
    this.models.value = spec.model;
    const most = Math.max(...described.reads); // q, k and v apart, say
    this.reads.hidden = most < 2;
    const named = ["mean of the reads", ...Array.from({ length: most }, (_, k) => `read ${k + 1} of ${most}`)];
    if (this.reads.options.length !== named.length)
      this.reads.replaceChildren(...named.map((name, k) => html("option", { value: k ? k - 1 : "" }, name)));
    this.reads.value = spec.read ?? "";
    this.close.hidden = !many;
    this.ownText.hidden = spec.text === null;
    if (spec.text !== null && this.ownText.value !== spec.text) this.ownText.value = spec.text;
    const { steps, training } = described;
    this.steps.hidden = steps.length < 2;
    this.step.max = steps.length - 1;
    const at = spec.step === null ? steps.length - 1 : steps.indexOf(spec.step);
    this.step.value = at;
    const newest = spec.step === null && training ? " (newest)" : "";
    this.stepText.textContent = ` ${this.picture?.step ?? steps[at] ?? ""}${newest}`;
    this.root.classList.toggle("active", many && app.active() === this);
  }

  #draw(read, site, source) {
    const { metric, column } = this.app.state, width = this.depth.clientWidth;
    const all = this.effects.site !== site ? ["weight", "size", "share", "lens"]
      : width < WIDEST ? ["weight", "size", "effect", "lens"] : ["weight", "size", "share", "effect", "lens"];
    const matrix = read.matrix(metric);
    this.drawing.update({ names: this.model, matrix, loudness: read.loudness, site, source,
      columns: read.columns(site, this.isWide() ? all : [column]), withMatrix: width >= NARROW,
      describe: (l, i) => read.describe(l, i), changes: this.changes.map((change) => told(change, this.model)),
      matrixTitle: `${metric === "size" ? "weight × |v|" : "weights"}, all sites`,
      label: `Depth in ${this.model.name}. ${this.sentence.textContent} Arrow keys go through sites and sources.` });
    this.below.replaceChildren();
    if (width < NARROW) this.app.drawMatrix(this.below, this.model, matrix);
  }

  // ---- saved files ----

  saved() {
    const { picture, explanation, effects } = this;
    const spec = { ...this.spec, changes: this.changes ?? [] }; // those of the picture
    return { spec, picture, explanation, effects: [...effects.values()], effectsSite: effects.site };
  }
  restore({ picture, explanation, effects, effectsSite }) {
    if (picture) this.#take(picture, this.asked(), this.view());
    this.explanation = explanation;
    this.effects = Object.assign(new Map(effects.map((effect) => [effect.source, effect])), { site: effectsSite });
  }
}

function legend() {
  const kinds = [["attention", "● attention"], ["mlp", "■ MLP"], ["embedding", "◆ embedding"]];
  const marks = kinds.flatMap(([className, text]) => [html("span", { className }, text), "  "]);
  return html("p", { className: "key" }, ...marks, "Each row is a sublayer, reading a weighted sum of " +
    "earlier outputs: thicker is more. ", html("b", {}, "Click a row"), " to see what it reads",
  html("span", { className: "live" }, ", ", html("b", {}, "a bar or cell"), " to change that"), ".");
}

function lossText({ tokens, next, mean_loss: loss, unchanged_loss: before }) {
  if (next.some(([first]) => first.probability === null))
    return "the model's answer is not finite, so there is no loss";
  if (loss === null) return tokens.length ? "one token alone has no loss" : "";
  return before === null ? `mean loss ${nats(loss)} nats per token`
    : `mean loss ${nats(before)} → ${nats(loss)} nats per token (${signed(loss - before)})`;
}
