/* Making videos: a job that is asked about until it is done. */

import { ApiError, call, callJson, formOf } from "./api.js";

const PERIOD_MS = 300;
const STATES = { queued: "queued", in_progress: "running" };

/** Promises of jobs, by the names of their requests: one that was sent for goes on until deleted. */
const jobs = new Map();

/**
 * Make a video, and tell how it goes; see `makeImages`.
 */
export async function* makeVideo(model, settings, name, signal) {
  const body = "input_reference" in settings ? formOf(settings) : settings;
  jobs.set(name, callJson("v1/videos", { method: "POST", body }));
  let job = await jobs.get(name);
  while (job.status in STATES) {
    signal.throwIfAborted();
    yield {
      kind: "progress",
      state: STATES[job.status],
      position: job.queue_position,
      step: job.step,
      total: job.total,
      eta: job.eta,
    };
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    job = await callJson(`v1/videos/${job.id}`, { signal });
  }
  if (job.status !== "completed") throw new ApiError(200, job.error ?? { message: job.status });
  const content = await call(`v1/videos/${job.id}/content`, { signal });
  yield { kind: "result", blob: await content.blob(), seed: job.seed };
}

/** Cancel a job; returns when the device has let go of it. */
export async function cancelVideo(name) {
  const { id } = await jobs.get(name);
  await call(`v1/videos/${id}`, { method: "DELETE" });
}
