/* The form: the fields that the model takes, what is in them, and what is wrong with it. */

import { Adapters } from "./adapters.js";
import { byId, element } from "./dom.js";
import { Pictures } from "./pictures.js";

const NUMBERS = ["num_inference_steps", "guidance_scale", "strength", "seconds", "n"];

/** The settings of the next picture. Their names are those of the server's API. */
export class Form {
  constructor() {
    this.root = byId("form");
    this.model = null;
    this.adapters = new Adapters();
    this.pictures = new Pictures();
    byId("random").addEventListener("click", () => this.drawSeed());
    byId("lock").addEventListener("click", () => this.lock(!this.locked));
    byId("seed").addEventListener("input", () => this.lock(byId("seed").value !== ""));
    this.root.addEventListener("input", ({ target }) => unmark(target.closest("[data-field]")));
  }

  /** Offer what a model takes, and say what it does by itself. */
  adapt(model) {
    this.model = model;
    for (const field of this.root.querySelectorAll("[data-field]")) {
      field.hidden = !model.parameters.includes(field.dataset.field);
    }
    for (const pair of this.root.querySelectorAll(".pair:not([data-field])")) {
      pair.hidden = !pair.querySelector("[data-field]:not([hidden])");
    }
    const [width, height] = (model.defaults.size ?? "x").split("x");
    const defaults = { ...model.defaults, width, height };
    for (const name of ["width", "height", ...NUMBERS]) {
      byId(name).placeholder = defaults[name] ?? byId(name).placeholder;
    }
    const { side } = model.limits;
    const limits = { ...model.limits, width: side, height: side };
    for (const [name, most] of Object.entries(limits)) {
      if (byId(name)?.type === "number") byId(name).max = most;
    }
    this.adapters.offer(model.lora);
    this.pictures.need(model.needs_image);
    byId("pictures-hint").hidden = !model.accepts_image;
    byId("generate").disabled = false;
  }

  get locked() {
    return byId("lock").getAttribute("aria-pressed") === "true";
  }

  /** Keep the seed for the next picture, or not. */
  lock(locked) {
    byId("lock").setAttribute("aria-pressed", String(locked));
    byId("lock").textContent = locked ? "Locked" : "Lock";
  }

  drawSeed() {
    byId("seed").value = crypto.getRandomValues(new Uint32Array(1))[0];
    unmark(byId("seed").closest("[data-field]"));
  }

  /** Return the settings, or null where one is no number or is missing; that is marked then. */
  read() {
    this.unmarkAll();
    if (this.takes("seed") && (!this.locked || byId("seed").value === "")) this.drawSeed();
    const broken = [...this.root.querySelectorAll("[data-field]:not([hidden]) input")].find(
      (input) => input.validity.badInput,
    );
    if (broken) {
      this.mark(broken.closest("[data-field]").dataset.field, "must be a number");
      return null;
    }
    const { missing } = this.pictures;
    if (missing) {
      this.mark(missing, "The model works on one");
      byId(missing).focus();
      return null;
    }
    const settings = { prompt: byId("prompt").value.trim(), ...this.pictures.chosen };
    const negative = byId("negative_prompt").value.trim();
    if (this.takes("negative_prompt") && negative) settings.negative_prompt = negative;
    if (this.takes("size") && this.size) settings.size = this.size;
    for (const name of [...NUMBERS, "seed"]) {
      const { value } = byId(name);
      if (this.takes(name) && value !== "") settings[name] = Number(value);
    }
    if (this.adapters.chosen) settings.lora = this.adapters.chosen;
    return settings;
  }

  takes(name) {
    return this.model.parameters.includes(name);
  }

  /** The size of what comes, as far as it is known; for settings that `read` has returned. */
  expectedSize(settings) {
    return settings.size ?? this.pictures.size ?? this.model.defaults.size ?? "1x1";
  }

  get size() {
    const [width, height] = [byId("width"), byId("height")];
    if (width.value === "" && height.value === "") return null;
    const side = (input, other) => input.value || Number(input.placeholder) || other.value;
    return `${side(width, height)}x${side(height, width)}`;
  }

  /** Put settings of an earlier picture into the fields, its seed included. */
  write(settings) {
    this.unmarkAll();
    const [width, height] = (settings.size ?? "x").split("x");
    const values = { ...settings, width, height };
    for (const name of ["prompt", "negative_prompt", "seed", "width", "height", ...NUMBERS]) {
      byId(name).value = values[name] ?? "";
    }
    this.pictures.choose(settings);
    this.adapters.choose(settings.lora ?? {});
    this.lock("seed" in settings);
  }

  /** Show what is wrong with a field; false if there is no such field. */
  mark(name, message) {
    const field = this.root.querySelector(`[data-field="${CSS.escape(name ?? "")}"]:not([hidden])`);
    if (!field) return false;
    unmark(field);
    const text = message.replace(`${name}: `, "");
    const note = element("p", { class: "wrong", id: `${name}-wrong`, textContent: text });
    field.append(note);
    for (const input of field.querySelectorAll("input, textarea")) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", note.id);
    }
    return true;
  }

  unmarkAll() {
    this.root.querySelectorAll("[data-field]").forEach(unmark);
  }
}

function unmark(field) {
  field?.querySelector(".wrong")?.remove();
  for (const input of field?.querySelectorAll("[aria-invalid]") ?? []) {
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-describedby");
  }
}
