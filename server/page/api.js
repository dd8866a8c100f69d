/* Calls to the server: keys, errors, and server-sent events. */

const KEY = "sidestream.key";

/** What the server answers when something is wrong. */
export class ApiError extends Error {
  constructor(status, { message, param = null, code = null }) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
  }
}

/** The key of this tab, or null. */
export const key = () => sessionStorage.getItem(KEY);

/** Keep a key for as long as the tab lives. */
export const setKey = (value) => sessionStorage.setItem(KEY, value);

/**
 * Call the server and return its response, which is a good one.
 *
 * A `body` is sent as JSON, or as a form where it is a `FormData`.
 *
 * @throws {ApiError} It is not.
 */
export async function call(path, { method = "GET", body, signal, headers = {} } = {}) {
  const sent = { ...headers };
  if (key() !== null) sent.Authorization = `Bearer ${key()}`;
  const isForm = body instanceof FormData; // the browser names its type, with a boundary
  if (body !== undefined && !isForm) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: sent,
      signal,
      body: body === undefined || isForm ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "the server cannot be reached" });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** Call the server and return the JSON of its answer. */
export const callJson = async (path, options) => (await call(path, options)).json();

/** Make a form of settings; what is neither text nor a file nor a number is written as JSON. */
export function formOf(settings) {
  const form = new FormData();
  for (const [name, value] of Object.entries(settings)) {
    const isPlain = value instanceof File || typeof value !== "object";
    form.append(name, isPlain ? value : JSON.stringify(value));
  }
  return form;
}

async function errorOf(response) {
  const answer = await response.json().catch(() => ({}));
  const message = `the server answered ${response.status}`;
  return new ApiError(response.status, answer.error ?? { message });
}

/** A name for a request; `randomUUID` is for secure pages only. */
export function newName() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Read server-sent events: objects with a `type`.
 *
 * @throws {ApiError} The server told an error, or broke off.
 */
export async function* events(response) {
  let ended = false;
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data:")) continue;
    const event = JSON.parse(line.slice(5));
    if (event.type === "error") throw new ApiError(200, event.error);
    ended = event.type.endsWith(".completed");
    yield event;
  }
  if (!ended) throw new ApiError(0, { message: "the server broke off" });
}

/** Split a body into lines. A line may have megabytes, so it is joined once, when it is complete. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const [first, ...rest] = value.split("\n");
      pieces.push(first);
      for (const piece of rest) {
        yield pieces.join("");
        pieces = [piece];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Turn base64 into a blob. */
export function blobOf(base64, type) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) bytes[index] = text.charCodeAt(index);
  return new Blob([bytes], { type });
}
