/* A card: one request, from the press of the button to its pictures. */

import { announce, element } from "./dom.js";
import { count, duration, timeLeft } from "./format.js";
import { downloadLink, enlarge } from "./lightbox.js";
import { PICTURES } from "./pictures.js";

const PHASES = ["queued", "forward", "output", "postprocess"];
const STATES_THAT_LAST = ["done", "failed", "cancelled"];

/** What a request shows of itself. Its `state` is in the card's `data-state` for style and tests. */
export class Card {
  /**
   * @param {number} number For people.
   * @param {object} settings What was asked for.
   * @param {string} size What is to be expected.
   * @param {{cancel, reuse, remove}} actions Called with the card.
   */
  constructor(number, settings, size, actions) {
    this.number = number;
    this.settings = settings;
    this.results = [];
    this.step = null;
    this.urls = [];
    this.pictures = element("div", { class: "pictures" });
    this.progress = element("progress", { max: 1, "aria-label": `Progress of picture ${number}` });
    this.status = element("p", { class: "status" });
    this.facts = element("p", { class: "facts", textContent: factsOf(settings) });
    this.details = element("div", { class: "details" });
    this.actions = element("div", { class: "actions" });
    this.callbacks = actions;
    const title = element("h3", { id: `card-${number}`, class: "prompt" }, settings.prompt || "—");
    this.root = element(
      "li",
      { class: "card", tabIndex: -1, "aria-labelledby": title.id },
      this.pictures,
      this.progress,
      title,
      this.facts,
      this.status,
      this.details,
      this.actions,
    );
    this.pictures.style.aspectRatio = size.replace("x", " / ");
    this.enter("waiting", "Waiting for its turn");
  }

  get state() {
    return this.root.dataset.state;
  }

  /** Whether it has its outcome. */
  get ended() {
    return STATES_THAT_LAST.includes(this.state);
  }

  enter(state, text) {
    this.root.dataset.state = state;
    this.status.textContent = text;
    const button = (label, callback, title = "") =>
      element("button", { type: "button", class: "quiet", textContent: label, title, onclick: callback });
    const { cancel, reuse, remove } = this.callbacks;
    const offered = this.ended
      ? [
          ...(state === "done" && this.results.length === 1 ? [downloadLink(this.results[0])] : []),
          button("Use again", () => reuse(this), "Put these settings into the form"),
          button("Remove", () => remove(this)),
        ]
      : [button("Cancel", () => cancel(this))];
    if (state === "cancelling") offered[0].disabled = true;
    const hadFocus = this.actions.contains(document.activeElement);
    this.actions.replaceChildren(...offered);
    if (hadFocus) this.root.focus();
  }

  // ---- what comes

  /** Show an update of `makeImages` or `makeVideo`. */
  show(update) {
    if (update.kind === "progress") this.showProgress(update);
    else if (update.kind === "preview") this.showPreview(update.blob);
    else this.results.push(update);
  }

  showProgress({ state, position, step = null, total = null, eta = null }) {
    if (state === "queued") {
      this.enter("queued", position ? `Queued, ${position} ahead` : "Queued");
      return;
    }
    if (this.state !== "running") this.enter("running", "Running");
    if (step === null) return;
    this.step = total === null ? `step ${step}` : `step ${step} of ${total}`;
    const left = eta ? ` · ${timeLeft(eta)}` : "";
    this.status.textContent = `${capital(this.step)}${left}`;
    if (total !== null) {
      this.progress.value = step / total;
      if (quarter(step, total) > quarter(step - 1, total) && step < total) {
        announce(`Picture ${this.number}: ${this.step}`);
      }
    }
  }

  showPreview(blob) {
    const [shown] = this.pictures.children;
    const image = shown ?? element("img", { class: "preview", alt: "Preview" });
    const old = image.src;
    image.src = this.urlOf(blob);
    if (shown) this.forget(old);
    else this.pictures.append(image);
  }

  /** Show the pictures, once all are there and can be painted. */
  async finish() {
    const { timings = null } = this.results.at(-1);
    const shown = this.results.map((result) => this.picture(result));
    await Promise.all(shown.map((one) => one.querySelector("img")?.decode()));
    if (this.state === "cancelling") return;
    this.pictures.style.setProperty("--columns", Math.ceil(Math.sqrt(shown.length)));
    this.pictures.style.aspectRatio = "";
    this.pictures.replaceChildren(...shown);
    if (timings) this.details.replaceChildren(phases(timings));
    const what = this.results[0].blob.type.startsWith("video") ? "video" : "picture";
    this.enter("done", timings ? `Done in ${duration(timings.total * 1000)}` : "Done");
    announce(`${capital(what)} ${this.number} is done`);
  }

  picture(result) {
    result.url = this.urlOf(result.blob);
    result.file = `sidestream-${result.seed ?? this.number}.${result.blob.type.split("/")[1]}`;
    const label = `${this.settings.prompt}, seed ${result.seed}`;
    if (result.blob.type.startsWith("video")) {
      return element("video", {
        src: result.url,
        controls: true,
        loop: true,
        muted: true,
        autoplay: !matchMedia("(prefers-reduced-motion: reduce)").matches,
        "aria-label": label,
      });
    }
    const image = element("img", { src: result.url, alt: label });
    return element("button", {
      type: "button",
      class: "picture",
      title: "Enlarge",
      onclick: () => enlarge(result, label),
    }, image);
  }

  // ---- how it ends badly

  cancelled() {
    const at = this.step ? ` at ${this.step}` : "";
    this.enter("cancelled", `Cancelled${at}; the device has let go`);
    announce(`Picture ${this.number} was cancelled`);
  }

  fail(message) {
    this.enter("failed", message);
    announce(`Picture ${this.number} failed: ${message}`);
  }

  // ---- memory

  urlOf(blob) {
    const url = URL.createObjectURL(blob);
    this.urls.push(url);
    return url;
  }

  forget(url) {
    URL.revokeObjectURL(url);
    this.urls = this.urls.filter((other) => other !== url);
  }

  remove() {
    this.urls.forEach((url) => URL.revokeObjectURL(url));
    this.root.remove();
  }
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

const quarter = (step, total) => Math.floor((4 * step) / total);

function factsOf(settings) {
  const { seed, size, num_inference_steps: steps, guidance_scale: guidance, n } = settings;
  const { strength, seconds, lora = {} } = settings;
  const pictures = PICTURES.filter((name) => name in settings).map((name) => settings[name].name);
  const facts = [
    ...pictures,
    seed !== undefined && (n > 1 ? `seeds ${seed} to ${seed + n - 1}` : `seed ${seed}`),
    size && size.replace("x", " × "),
    seconds !== undefined && `${seconds} s`,
    steps !== undefined && count(steps, "step"),
    guidance !== undefined && `guidance ${guidance}`,
    strength !== undefined && `strength ${strength}`,
    ...Object.entries(lora).map(([name, scale]) => `${name} ${scale}`),
  ];
  return facts.filter(Boolean).join(" · ");
}

/** Draw where the time went: a bar in proportion, and the numbers. */
function phases(timings) {
  const bar = element("div", { class: "bar", "aria-hidden": "true" });
  const list = element("dl", { class: "phases" });
  for (const phase of PHASES) {
    const part = element("span", { class: phase });
    part.style.flexGrow = timings[phase];
    bar.append(part);
    list.append(
      element("div", { class: phase },
        element("dt", {}, phase),
        element("dd", {}, duration(timings[phase] * 1000))),
    );
  }
  return element("div", {}, bar, list);
}
