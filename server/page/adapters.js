/* Adapters: which of them are at work in a picture, and how strong each is. */

import { byId, element } from "./dom.js";

const SCALE = "1";

/** A row for each adapter that the engine has: whether it is wanted, and its scale. */
export class Adapters {
  constructor() {
    this.rows = new Map();
  }

  /** Offer adapters, none of them chosen. */
  offer(names) {
    this.rows = new Map(names.map((name) => [name, new Row(name)]));
    byId("adapters").replaceChildren(...[...this.rows.values()].map((row) => row.root));
  }

  /** The scales of those that are chosen, by name; null if none is. */
  get chosen() {
    const chosen = [...this.rows].filter(([, row]) => row.wanted.checked);
    return chosen.length ? Object.fromEntries(chosen.map(([name, row]) => [name, row.value])) : null;
  }

  /** Choose adapters with their scales; those that are not named are not. */
  choose(scales) {
    for (const [name, row] of this.rows) row.set(name in scales, scales[name]);
  }
}

class Row {
  constructor(name) {
    this.wanted = element("input", { type: "checkbox", onchange: () => this.adapt() });
    this.scale = element("input", {
      type: "number",
      inputMode: "decimal",
      step: "0.05",
      placeholder: SCALE,
      "aria-label": `Scale of ${name}`,
    });
    this.root = element(
      "li",
      { class: "adapter" },
      element("label", {}, this.wanted, element("span", {}, name)),
      this.scale,
    );
    this.root.dataset.field = `lora.${name}`; // as errors name it
    this.set(false);
  }

  get value() {
    return Number(this.scale.value || SCALE);
  }

  set(wanted, scale = SCALE) {
    this.wanted.checked = wanted;
    this.scale.value = scale;
    this.adapt();
  }

  adapt() {
    this.scale.disabled = !this.wanted.checked;
  }
}
