/* Numbers for people. */

/** Format a time, given in ms, with as many digits as mean something. */
export function duration(ms) {
  if (ms < 0.1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

/** Say how long something may still take, given in seconds. */
export function timeLeft(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return whole < 100 ? `${whole} s left` : `${Math.round(whole / 60)} min left`;
}

/** Say how many there are of something. */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
