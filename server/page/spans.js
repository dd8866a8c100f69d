/* Spans of time on one device: [start, end] in ms, of any clock. */

/**
 * Join spans that overlap.
 *
 * @param {[number, number][]} spans Sorted by their start.
 */
export function union(spans) {
  const joined = [];
  for (const [start, end] of spans) {
    const last = joined.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else joined.push([start, end]);
  }
  return joined;
}

/** How much of a window spans take, of spans that do not overlap. */
export function covered(spans, from, to) {
  return spans.reduce(
    (sum, [start, end]) => sum + Math.max(0, Math.min(end, to) - Math.max(start, from)),
    0,
  );
}

/**
 * Find the bubbles: when no forward ran although the next request was waiting already.
 *
 * @param {{submitted: number, start: number, end: number}[]} forwards Sorted by their start.
 */
export function bubbles(forwards) {
  const found = [];
  let busyUntil = -Infinity;
  for (const { submitted, start, end } of forwards) {
    const from = Math.max(submitted, busyUntil);
    if (busyUntil > -Infinity && start > from) found.push([from, start]);
    busyUntil = Math.max(busyUntil, end);
  }
  return found;
}

/**
 * Give each span a row, so that those of one row do not overlap; return how many rows there are.
 *
 * @param {{start: number, end: number, row?: number}[]} spans Sorted by their start; get a `row`.
 */
export function stack(spans) {
  const ends = [];
  for (const span of spans) {
    const free = ends.findIndex((end) => end <= span.start);
    span.row = free < 0 ? ends.length : free;
    ends[span.row] = span.end;
  }
  return ends.length;
}
