/* Making videos: a job that is asked about until it is done. */

import { ApiError, call, callJson } from "./api.js";

const PERIOD_MS = 300;
const STATES = { queued: "queued", in_progress: "running" };
const jobs = new Map();

/**
 * Make a video, and tell how it goes; see `makeImages`.
 */
export async function* makeVideo(model, settings, name, signal) {
  let job = await callJson("v1/videos", { method: "POST", body: settings });
  jobs.set(name, job.id);
  while (job.status in STATES) {
    signal.throwIfAborted();
    yield {
      kind: "progress",
      state: STATES[job.status],
      position: job.queue_position ?? null,
      step: job.step ?? job.progress,
      total: job.total ?? 100,
      eta: job.eta ?? null,
    };
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    job = await callJson(`v1/videos/${job.id}`, { signal });
  }
  if (job.status !== "completed") throw new ApiError(200, job.error ?? { message: job.status });
  const content = await call(`v1/videos/${job.id}/content`, { signal });
  const { seed = settings.seed, timings = null } = job;
  yield { kind: "result", blob: await content.blob(), seed, timings };
}

/** Cancel a job, and forget it. */
export async function cancelVideo(name) {
  const id = jobs.get(name);
  if (id !== undefined) await call(`v1/videos/${id}`, { method: "DELETE" });
}
