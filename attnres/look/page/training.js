// A run as it goes: its losses over the steps.

import { html } from "../../report/charts/dom.js";
import { lineChart } from "../../report/charts/lines.js";
import { Failed, Lost, ask } from "./client.js";

const POINTS = 300;

// Shows the curve of one run at a time, where place(running) puts it; renewed(session) is called when a checkpoint was
// written. A run that was done may have gone on: it is asked for again where the stream has ended.
export class Training {
  constructor(parent, place, renewed, lost) {
    Object.assign(this, { parent, place, renewed, lost, open: null, watched: null, controller: null, running: null });
  }

  async watch(model) {
    const same = this.watched === model.id;
    if (same && this.controller) return;
    this.stop();
    this.watched = model.id;
    if (!same) this.parent.hidden = true;
    if (model.kind !== "run") return;
    const controller = this.controller = new AbortController();
    try {
      await ask("watch", { model: model.id }, (message) => {
        if (message.kind === "curve") this.#draw(message, model);
        if (message.kind === "session") this.renewed(message);
      }, controller.signal);
    } catch (error) {
      if (error instanceof Lost) this.lost();
      else if (!(error instanceof Failed) && error.name !== "AbortError") throw error;
    } finally {
      if (this.controller === controller) this.controller = null;
    }
  }
  stop() {
    this.controller?.abort();
    this.watched = null;
  }

  #draw(curve, model) {
    this.parent.hidden = curve.steps.length < 2;
    if (this.parent.hidden) return;
    if (this.running !== curve.running) this.place(this.running = curve.running);
    const stride = Math.ceil(curve.steps.length / POINTS);
    const thin = (values) => values.filter((_, i) => i % stride === 0 || i === values.length - 1);
    const colour = model.colour || "currentColor";
    const lines = [{ name: "training", colour, dashes: "", x: thin(curve.steps), y: thin(curve.losses) }];
    if (curve.validation_steps.length)
      lines.push({ name: "validation", colour, dashes: "6 3", x: curve.validation_steps, y: curve.validation_losses });
    const state = `${curve.running ? "training, " : ""}step ${curve.steps.at(-1)} of ${curve.total_steps}`;
    const details = html("details", { open: this.open ?? curve.running },
      html("summary", {}, `${model.name}: ${state}`));
    this.parent.replaceChildren(details);
    const draw = () => {
      this.open = details.open;
      if (!details.open || details.querySelector("svg")) return;
      lineChart(details, lines, { title: "loss, nats per token", xLabel: "step", label: (x) => `step ${x}` });
    };
    draw();
    details.addEventListener("toggle", draw);
  }
}
