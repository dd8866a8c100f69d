/* Fields for pictures: chosen from files, dropped, or pasted. */

import { byId, element } from "./dom.js";

/** Names of the fields, which are those of the server's API. */
export const PICTURES = ["image", "mask", "input_reference"];

/** The fields for pictures that the model takes. */
export class Pictures {
  constructor() {
    this.fields = new Map(PICTURES.map((name) => [name, new PictureField(name)]));
    addEventListener("paste", (event) => this.take(event, event.clipboardData));
    addEventListener("drop", (event) => this.take(event, event.dataTransfer));
    addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault(); // else the browser would open the file, in place of the page
      if (!this.fieldOf(event)) event.dataTransfer.dropEffect = "none";
    });
  }

  /** The chosen files, by field. */
  get chosen() {
    const shown = [...this.fields].filter(([, field]) => field.isOffered && field.file);
    return Object.fromEntries(shown.map(([name, field]) => [name, field.file]));
  }

  /** Choose the files of settings; fields that are not in there have none. */
  choose(settings) {
    for (const [name, field] of this.fields) field.set(settings[name] ?? null);
  }

  /** Say whether there has to be a picture to start from. */
  need(needed) {
    for (const name of ["image", "input_reference"]) this.fields.get(name).need(needed);
  }

  /** Return the name of a field that needs a picture and has none, or undefined. */
  get missing() {
    const lacking = [...this.fields].find(
      ([, { input, isOffered }]) => isOffered && input.validity.valueMissing,
    );
    return lacking?.[0];
  }

  /** The size of the picture to start from, as `WIDTHxHEIGHT`; null while there is none. */
  get size() {
    const field = [...this.fields.values()].find(({ isOffered, file }) => isOffered && file);
    const { naturalWidth, naturalHeight } = field?.shown ?? {};
    return naturalWidth ? `${naturalWidth}x${naturalHeight}` : null;
  }

  /** Where a file goes that comes with an event: the field it came to, else the first one. */
  fieldOf({ target }) {
    if (document.querySelector("dialog[open]")) return null;
    const offered = [...this.fields.values()].filter(({ isOffered }) => isOffered);
    const near = target instanceof Node ? target : null;
    return offered.find(({ root }) => root.contains(near)) ?? offered[0] ?? null;
  }

  take(event, { files }) {
    const field = files.length ? this.fieldOf(event) : null;
    if (!field) return;
    event.preventDefault();
    field.set(files[0]);
  }
}

/** One of them. What it holds is in its `input`. */
class PictureField {
  constructor(name) {
    this.input = byId(name);
    this.root = this.input.closest("[data-field]");
    this.label = this.root.querySelector("label");
    this.text = this.label.textContent;
    this.shown = element("img", { class: "chosen", alt: "" });
    this.remove = element("button", {
      type: "button",
      class: "quiet",
      textContent: "Remove",
      "aria-label": `Remove the ${this.text.toLowerCase()}`,
      onclick: () => {
        this.set(null);
        this.input.focus();
      },
    });
    this.input.before(this.shown);
    this.input.after(this.remove);
    this.input.addEventListener("change", () => this.show());
    this.show();
  }

  get isOffered() {
    return !this.root.hidden;
  }

  get file() {
    return this.input.files[0] ?? null;
  }

  /** Hold a file, or none. */
  set(file) {
    const transfer = new DataTransfer();
    if (file) transfer.items.add(file);
    this.input.files = transfer.files;
    this.input.dispatchEvent(new Event("input", { bubbles: true }));
    this.show();
  }

  need(needed) {
    this.input.required = needed;
    this.label.textContent = needed ? this.text : `${this.text} (optional)`;
  }

  show() {
    URL.revokeObjectURL(this.shown.src);
    this.shown.hidden = this.remove.hidden = !this.file;
    if (this.file) this.shown.src = URL.createObjectURL(this.file);
    else this.shown.removeAttribute("src");
  }
}
