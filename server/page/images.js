/* Making pictures: a request with a stream of events for an answer. */

import { blobOf, call, events } from "./api.js";

const PREVIEWS = 3;

/**
 * Make pictures, and tell how it goes.
 *
 * Yields `{kind: "progress", state, position, step, total, eta}`, `{kind: "preview", blob}`, and
 * `{kind: "result", blob, seed, timings}` for each picture.
 */
export async function* makeImages(model, settings, name, signal) {
  const previews = model.parameters.includes("partial_images");
  const body = {
    ...settings,
    request_id: name,
    stream: true,
    stream_progress: true,
    ...(previews && { partial_images: PREVIEWS }),
  };
  const response = await call("v1/images/generations", { method: "POST", body, signal });
  for await (const event of events(response)) {
    const type = `image/${event.output_format}`;
    switch (event.type) {
      case "image_generation.progress":
        yield { kind: "progress", ...event, position: event.queue_position ?? null };
        break;
      case "image_generation.partial_image":
        yield { kind: "preview", blob: blobOf(event.b64_json, type) };
        break;
      case "image_generation.completed": {
        const { seed, timings } = event;
        yield { kind: "result", blob: blobOf(event.b64_json, type), seed, timings };
      }
    }
  }
}

/** Cancel a request; returns when the device has let go of it. */
export const cancelImages = (name) => call(`v1/requests/${name}/cancel`, { method: "POST" });
