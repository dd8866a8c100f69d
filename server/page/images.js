/* Making pictures: a request with a stream of events for an answer. */

import { blobOf, call, events, formOf } from "./api.js";

const PREVIEWS = 3;

/**
 * Make pictures, of a picture if the settings have one, and tell how it goes.
 *
 * Yields `{kind: "progress", state, position, step, total, eta}`, `{kind: "preview", blob}`, and
 * `{kind: "result", blob, seed, timings}` for each picture.
 */
export async function* makeImages(model, settings, name, signal) {
  const previews = model.parameters.includes("partial_images");
  const fields = {
    ...settings,
    request_id: name,
    stream: true,
    stream_progress: true,
    ...(previews && { partial_images: PREVIEWS }),
  };
  const isEdit = "image" in settings || "mask" in settings;
  const [path, body] = isEdit
    ? ["v1/images/edits", formOf(fields)]
    : ["v1/images/generations", fields];
  const response = await call(path, { method: "POST", body, signal });
  for await (const event of events(response)) {
    const type = `image/${event.output_format}`;
    const [, what] = event.type.split("."); // before the dot: image_generation or image_edit
    switch (what) {
      case "progress":
        yield { kind: "progress", ...event, position: event.queue_position ?? null };
        break;
      case "partial_image":
        yield { kind: "preview", blob: blobOf(event.b64_json, type) };
        break;
      case "completed": {
        const { seed, timings } = event;
        yield { kind: "result", blob: blobOf(event.b64_json, type), seed, timings };
      }
    }
  }
}

/** Cancel a request; returns when the device has let go of it. */
export const cancelImages = (name) => call(`v1/requests/${name}/cancel`, { method: "POST" });
