import { PinfoldError } from './errors.mjs';
import { lines } from './lines.mjs';
import { away } from './wire.mjs';

/**
 * A turn that is held: its client is there until this is closed, or this process
 * is gone. It is held again when the service was away. `over` is a promise of the
 * turn's state once it is over; it fails with stale_epoch when another has taken
 * the turn, and with unavailable when it was closed, or the service stays away.
 */
export class Hold {
  #stop = new AbortController();

  constructor(turn) {
    this.turn = turn;
  }

  /** Answers itself, once the turn is held. */
  async open() {
    const first = await this.#ask();
    this.over = this.#follow(first);
    this.over.catch(() => {}); // nobody need wait for it
    return this;
  }

  /** Lets the turn go. */
  close() {
    this.#stop.abort();
  }

  /** An answer whose first line has been read. */
  #ask() {
    const { wire } = this.turn.client;
    const { signal } = this.#stop;
    return wire.again(async () => {
      const res = await wire.open('GET', `${this.turn.path}/hold`, {
        query: this.turn.fence(), headers: { Accept: 'application/x-ndjson' }, fresh: true, timeout: wire.timeout, signal,
      });
      const said = lines(res, wire.socket);
      const { value, done } = await said.next();
      if (done) throw new PinfoldError('unavailable', 'the connection that holds the turn was lost');
      if (value.error) throw PinfoldError.of(value.error);
      return said;
    }, { signal });
  }

  async #follow(said) {
    for (;;) {
      try {
        for await (const line of said) {
          if (line.error) throw PinfoldError.of(line.error);
          if (line.state) return line.state;
        }
      } catch (e) {
        if (!away(e) && e.code !== 'ABORT_ERR') throw e;
      }
      if (this.#stop.signal.aborted) throw new PinfoldError('unavailable', 'it is not held any more');
      try {
        said = await this.#ask();
      } catch (e) {
        if (e.code === 'turn_over') { // its ending began while the service was away
          return (await this.turn.client.get(`${this.turn.path}/wait`, {}, { timeout: 0, signal: this.#stop.signal })).state;
        }
        throw e.code === 'ABORT_ERR' ? new PinfoldError('unavailable', 'it is not held any more') : e;
      }
    }
  }

  static {
    if (Symbol.asyncDispose) {
      this.prototype[Symbol.asyncDispose] = async function dispose() { this.close(); };
    }
  }
}
