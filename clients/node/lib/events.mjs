import { setTimeout as sleep } from 'node:timers/promises';
import { PinfoldError } from './errors.mjs';
import { away } from './wire.mjs';
import { lines } from './lines.mjs';

/**
 * What happened, in order: an async iterable of the API's events. With follow
 * also what comes, over restarts of the service. `after` is the number of the
 * last that was given, or passed over: whoever keeps it can go on there. What is
 * not kept any more is an event of kind gap.
 */
export class Events {
  #client;
  #query;
  #follow;
  #signal;

  constructor(client, { after, consumer, turn, session, kinds, follow = false, signal } = {}) {
    this.#client = client;
    this.after = after;
    this.#follow = follow;
    this.#signal = signal;
    this.#query = { consumer, turn, session, kinds: kinds?.length ? [...kinds].join(',') : undefined };
  }

  async* [Symbol.asyncIterator]() {
    if (this.after === -1) { // so that it can be gone on with, even when nothing comes
      yield* this.#answer(false);
      if (!this.#follow) return;
    }
    for (;;) {
      try {
        if (yield* this.#answer(this.#follow)) {
          if (!this.#follow) return;
        }
      } catch (e) {
        if (!away(e)) throw e;
      }
      await sleep(20, undefined, { signal: this.#signal });
    }
  }

  /** One answer; true when it came to its end. */
  async* #answer(follow) {
    const { wire } = this.#client;
    const query = { ...this.#query, after: this.after, follow: follow || undefined };
    const options = { query, headers: { Accept: 'application/x-ndjson' }, timeout: wire.timeout, signal: this.#signal, fresh: follow };
    const res = await wire.again(() => wire.open('GET', '/v1/events', options), { signal: this.#signal });
    for await (const line of lines(res, wire.socket)) {
      if (line.error) throw PinfoldError.of(line.error);
      const at = line.event?.seq ?? line.next;
      if (at !== undefined) {
        this.after = at;
        this.#query.consumer = undefined;
      }
      if (line.event) yield line.event;
      else if (line.next !== undefined) return true;
    }
    return false;
  }
}
