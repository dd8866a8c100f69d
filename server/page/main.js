/* The page: a form, what comes of it, and what the devices do. */

import { ApiError, callJson, key, setKey } from "./api.js";
import { byId } from "./dom.js";
import { Form } from "./form.js";
import { Gallery } from "./gallery.js";
import { cancelImages, makeImages } from "./images.js";
import { TimelineView } from "./timeline.js";
import { cancelVideo, makeVideo } from "./video.js";

const RETRY_MS = 1000;

const form = new Form();
const requests = {
  make: (settings, name, signal) => {
    const make = form.model.media === "video" ? makeVideo : makeImages;
    return make(form.model, settings, name, signal);
  },
  cancel: (name) => (form.model.media === "video" ? cancelVideo : cancelImages)(name),
};
const gallery = new Gallery(requests, {
  reuse(card) {
    form.write({ ...card.settings, seed: card.results[0]?.seed ?? card.settings.seed });
    byId("prompt").focus();
  },
  failed(error) {
    if (error.status === 401) askForKey();
    else if (error.param) form.mark(error.param, error.message);
  },
});
const timeline = new TimelineView();

// ---- the model

/** Find out what is served; again and again while the server starts. */
async function connect() {
  try {
    const { data: [model] } = await callJson("v1/models");
    form.adapt(model);
    const mode = model.mode === "step" ? "step mode" : "request mode";
    byId("model").textContent = `${model.id} · ${model.pipeline} · ${mode}`;
    document.title = `${model.id} · sidestream`;
    timeline.start();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("model").textContent = error.message;
    if (error.status === 401) askForKey();
    else setTimeout(connect, RETRY_MS);
  }
}

// ---- keys

function askForKey() {
  byId("open-key").hidden = false;
  byId("key-message").textContent =
    key() === null
      ? "This server asks for one. It is kept until this tab is closed."
      : "The server does not know this key.";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("open-key").addEventListener("click", askForKey);
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("key-form").addEventListener("submit", () => {
  setKey(byId("key").value.trim());
  connect();
});

// ---- generating

function generate() {
  if (byId("generate").disabled) return;
  const settings = form.read();
  if (settings !== null) gallery.add(settings, form.expectedSize(settings));
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return; // they have keys of their own
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    generate();
  } else if (event.key === "Escape" && gallery.cancelOne()) {
    event.preventDefault();
  }
});

if (/Mac|iPhone|iPad/.test(navigator.userAgent)) byId("modifier").textContent = "⌘";
connect();
