/* What the devices did in the last ten seconds, as the server tells while somebody looks. */

import { callJson } from "./api.js";
import { byId, element } from "./dom.js";
import { duration } from "./format.js";
import { bubbles, covered, stack, union } from "./spans.js";

const WINDOW_MS = 10_000;
const POLL_MS = 400;
const AFTER_FAILURE_MS = 3000;
const FRAME_MS = 100;
const FORWARDS = { top: 1, height: 26 };
const COPIES = { top: 31, height: 7 };
const HEIGHT = 40;
const LEAST_WIDTH = 1.5;
const SVG = "http://www.w3.org/2000/svg";

/** All lanes, drawn anew while something moves. */
export class TimelineView {
  constructor() {
    this.lanes = new Map();
    this.last = 0;
    this.started = false;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** Begin to poll; once. */
  start() {
    if (this.started) return;
    this.started = true;
    this.poll();
    this.animate();
  }

  async poll() {
    for (;;) {
      let pause = POLL_MS;
      try {
        this.take(await callJson(`v1/timeline?after=${this.last}`));
      } catch {
        byId("queue").textContent = "no news from the server";
        pause = AFTER_FAILURE_MS;
      }
      await this.pause(pause);
    }
  }

  /** Wait for a while, and for somebody to look. */
  async pause(milliseconds) {
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    while (document.hidden) {
      await new Promise((resolve) => {
        document.addEventListener("visibilitychange", resolve, { once: true });
      });
    }
  }

  async animate() {
    for (;;) {
      await this.pause(this.calm.matches ? POLL_MS : FRAME_MS);
      const now = performance.now();
      for (const lane of this.lanes.values()) lane.draw(now);
    }
  }

  take({ last, waiting, running, workers, requests }) {
    const now = performance.now();
    this.last = last;
    for (const worker of workers) {
      if (!this.lanes.has(worker.index)) {
        const lane = new Lane(worker, workers.length);
        this.lanes.set(worker.index, lane);
        byId("lanes").append(lane.root);
      }
      const own = requests.filter((request) => request.worker === worker.index);
      this.lanes.get(worker.index).take(worker, own, now);
    }
    byId("queue").textContent = `${running} running, ${waiting} waiting`;
  }
}

/** One worker: its forwards with the bubbles between them, and its copies. */
class Lane {
  constructor({ index, device }, count) {
    this.forwards = [];
    this.copies = [];
    this.openSince = null;
    this.stale = true;
    const name = count > 1 ? `${device} · ${index}` : device;
    this.name = element("span", { class: "lane-name" }, name);
    this.svg = svgElement("svg", { role: "img", height: HEIGHT });
    this.shapes = {};
    for (const kind of ["track", "open", "forward", "cut", "copy", "bubble"]) {
      this.shapes[kind] = svgElement("path", { class: kind });
      this.svg.append(this.shapes[kind]);
    }
    this.figure = element("span", { class: "lane-figure" });
    this.root = element("div", { class: "lane" }, this.name, this.svg, this.figure);
  }

  /** Note what has ended, and whether something is under way. */
  take({ running }, requests, now) {
    for (const request of requests) {
      const at = (moment) => now + request[moment];
      if (request.forward_end !== null && request.forward_start !== null) {
        this.forwards.push({
          submitted: at("submitted"),
          start: at("forward_start"),
          end: at("forward_end"),
          whole: request.outcome === "completed",
        });
      }
      if (request.copy_start !== null && request.copy_end !== null) {
        this.copies.push([at("copy_start"), at("copy_end")]);
      }
    }
    const from = now - 2 * WINDOW_MS;
    this.forwards = this.forwards.filter(({ end }) => end > from);
    this.forwards.sort((one, other) => one.start - other.start);
    this.copies = this.copies.filter(([, end]) => end > from);
    this.openSince = running ? Math.max(this.openSince ?? now, this.lastEnd(now)) : null;
    this.stale = true;
    this.describe(now);
  }

  /** When the last forward ended, as far as it matters for one that is under way. */
  lastEnd(now) {
    return this.forwards.reduce((latest, { end }) => Math.max(latest, end), now - WINDOW_MS);
  }

  spans(now) {
    const spans = this.forwards.map(({ start, end }) => [start, end]);
    if (this.openSince !== null) spans.push([this.openSince, now]);
    return union(spans);
  }

  describe(now) {
    const busy = covered(this.spans(now), now - WINDOW_MS, now) / WINDOW_MS;
    const lost = covered(bubbles(this.forwards), now - WINDOW_MS, now);
    const percent = busy > 0 && busy < 0.01 ? "< 1" : Math.round(busy * 100);
    this.figure.replaceChildren(
      element("b", {}, `${percent} % busy`),
      lost > 0 ? element("span", {}, `bubbles ${duration(lost)}`) : "",
    );
    this.svg.setAttribute(
      "aria-label",
      `${this.name.textContent}: ${percent} percent busy, bubbles ${duration(lost)}`,
    );
  }

  /** Draw it, if anything in it moves. */
  draw(now) {
    const from = now - WINDOW_MS;
    const moves = this.openSince !== null || this.forwards.some(({ end }) => end > from);
    if (!moves && !this.stale) return;
    this.stale = moves;
    const width = this.svg.clientWidth;
    const x = (moment) => ((moment - from) / WINDOW_MS) * width;
    const box = (start, end, { top, height }) => {
      const left = Math.max(0, x(start));
      const wide = Math.min(width, x(end)) - left;
      return end < from ? "" : rectangle(left, top, Math.max(LEAST_WIDTH, wide), height);
    };
    const visible = this.forwards.filter(({ end }) => end > from);
    const rows = Math.max(1, stack(visible));
    const height = FORWARDS.height / rows;
    const place = ({ row }) => ({
      top: FORWARDS.top + row * height,
      height: Math.max(1, height - (rows > 1 ? 1 : 0)),
    });
    const draw = (kind, path) => this.shapes[kind].setAttribute("d", path);
    const forwards = (whole) =>
      visible
        .filter((span) => span.whole === whole)
        .map((span) => box(span.start, span.end, place(span)))
        .join("");
    draw("track", rectangle(0, FORWARDS.top, width, FORWARDS.height) +
      rectangle(0, COPIES.top, width, COPIES.height));
    draw("open", this.openSince === null ? "" : box(this.openSince, now, FORWARDS));
    draw("forward", forwards(true));
    draw("cut", forwards(false));
    draw("copy", this.copies.map(([start, end]) => box(start, end, COPIES)).join(""));
    draw("bubble", bubbles(this.forwards).map(([start, end]) => box(start, end, FORWARDS)).join(""));
  }
}

function svgElement(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const rectangle = (left, top, width, height) =>
  `M${left.toFixed(1)} ${top.toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}h${(-width).toFixed(1)}z`;
