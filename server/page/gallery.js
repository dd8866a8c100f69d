/* The gallery: a card for each request, several of them under way at once. */

import { ApiError, newName } from "./api.js";
import { Card } from "./card.js";
import { byId } from "./dom.js";

/** Browsers open six connections to a server that speaks HTTP/1.1; the others are for the rest. */
const AT_ONCE = 4;

/** All cards. */
export class Gallery {
  /**
   * @param {{make, cancel}} requests What makes things of settings; see `makeImages`.
   * @param {{reuse, failed}} events `reuse(settings)`, and `failed(error)` for what concerns others.
   */
  constructor(requests, events) {
    this.requests = requests;
    this.events = events;
    this.root = byId("gallery");
    this.cards = [];
    this.waiting = [];
    this.running = 0;
    this.count = 0;
  }

  /** Make something of settings, of an expected size. */
  add(settings, size) {
    this.count += 1;
    const card = new Card(this.count, settings, size, {
      cancel: () => this.cancel(card),
      reuse: () => this.events.reuse(card),
      remove: () => this.remove(card),
    });
    card.name = newName();
    card.abort = new AbortController();
    this.cards.unshift(card);
    this.root.prepend(card.root);
    byId("nothing").hidden = true;
    this.waiting.push(card);
    this.startNext();
    return card;
  }

  startNext() {
    while (this.running < AT_ONCE && this.waiting.length) {
      this.running += 1;
      this.run(this.waiting.shift()).finally(() => {
        this.running -= 1;
        this.startNext();
      });
    }
  }

  async run(card) {
    try {
      const updates = this.requests.make(card.settings, card.name, card.abort.signal);
      for await (const update of updates) {
        if (!card.abort.signal.aborted) card.show(update);
      }
      if (!card.abort.signal.aborted) await card.finish();
    } catch (error) {
      if (card.abort.signal.aborted) return; // `cancel` tells the rest
      card.fail(error.message);
      this.events.failed(error);
      if (!(error instanceof ApiError)) throw error;
    }
  }

  /** Cancel a card's request, and say so when the device has let go of it. */
  async cancel(card) {
    if (card.ended || card.state === "cancelling") return;
    const began = !this.waiting.includes(card);
    this.waiting = this.waiting.filter((other) => other !== card);
    card.enter("cancelling", "Cancelling…");
    card.abort.abort();
    try {
      if (began) await this.requests.cancel(card.name);
      card.cancelled();
    } catch (error) {
      card.fail(`cancelled, but ${error.message}`);
    }
  }

  /** Cancel the card that has the focus, else the latest one under way; false if there is none. */
  cancelOne() {
    const live = this.cards.filter((card) => !card.ended && card.state !== "cancelling");
    const card = live.find(({ root }) => root.contains(document.activeElement)) ?? live[0];
    if (card) this.cancel(card);
    return Boolean(card);
  }

  remove(card) {
    this.cards = this.cards.filter((other) => other !== card);
    card.remove();
    byId("nothing").hidden = this.cards.length > 0;
  }
}
