import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { PinfoldError, unanswered } from './errors.mjs';

/**
 * A kept stream of a process, followed: bytes from an offset on until it ends,
 * also over restarts of the service. It asks the service only while somebody
 * reads. What cannot be read any more is a 'gap' event with {from, to}; where
 * nobody listens to that, it is an error of the stream with code gap.
 */
export class OutputStream extends Readable {
  #process = null;
  #res = null;
  #socket = null;
  #stop = new AbortController();
  #wake = null;
  #wanted = false;
  #running = false;
  #ref = true;
  #gap;
  #failed;
  #empty = 0; // answers in a row

  /** gap and failed, of whom it belongs to, are told of gaps, and why it cannot go on. */
  constructor(name, { offset = 0, drain, highWaterMark = 1 << 16, gap = () => false, failed = (e) => this.destroy(e) } = {}) {
    super({ highWaterMark });
    this.#gap = gap;
    this.#failed = failed;
    this.name = name;
    /** Of the next byte that the service will send. */
    this.offset = offset;
    /** Bytes that could not be read. */
    this.gapBytes = 0;
    this.drain = drain;
  }

  /** Follows a process from now on. */
  open(process) {
    this.#process = process;
    this.#go();
  }

  ref() {
    this.#ref = true;
    this.#socket?.ref();
    return this;
  }

  unref() {
    this.#ref = false;
    this.#socket?.unref();
    return this;
  }

  _read() {
    this.#wanted = true;
    this.#res?.resume();
    this.#wake?.();
    this.#go();
  }

  _destroy(error, done) {
    this.#stop.abort();
    this.#wake?.();
    done(error);
  }

  #go() {
    if (this.#process && this.#wanted && !this.#running) {
      this.#running = true;
      this.#follow().catch((e) => process.nextTick(() => {
        if (!this.destroyed) this.#failed(e);
      }));
    }
  }

  async #follow() {
    const { wire } = this.#process.turn.client;
    while (!this.destroyed) {
      await this.#reader();
      const from = this.offset;
      await wire.again(() => this.#answer(wire), { ref: () => this.#ref, signal: this.#stop.signal });
      if (await this.#over(this.offset === from)) {
        this.push(null);
        return;
      }
    }
  }

  /** Until somebody reads: a connection that nobody reads from is cut by the service. */
  async #reader() {
    while (!this.#wanted && !this.destroyed) {
      await new Promise((r) => { this.#wake = r; });
      this.#wake = null;
    }
  }

  /** One answer, which ends with the stream, at a gap, or when it is cut off. */
  async #answer(wire) {
    const res = await wire.open('GET', `${this.#process.path}/output`, {
      query: { stream: this.name, offset: this.offset, follow: true, drain_ms: this.drain },
      signal: this.#stop.signal,
      onSocket: (s) => {
        this.#socket = s;
        if (!this.#ref) s.unref();
      },
    });
    try {
      this.#skip(Number(res.headers['pinfold-offset'] ?? this.offset));
      await this.#pump(res, wire.socket);
      this.#skip(Number(res.trailers['pinfold-next-offset'] ?? this.offset));
    } finally {
      this.#res = this.#socket = null;
    }
  }

  #pump(res, socket) {
    return new Promise((resolve, reject) => {
      res.on('data', (b) => {
        if (this.destroyed) return;
        this.offset += b.length;
        this.#wanted = this.push(b);
        if (!this.#wanted) res.pause();
      });
      const end = (e) => {
        if (res.complete) resolve();
        else reject(unanswered(e ?? new Error('the output was cut off'), socket));
      };
      res.once('end', end);
      res.once('error', end);
      res.once('close', end);
      this.#res = res;
    });
  }

  #skip(to) {
    const gap = { stream: this.name, from: this.offset, to };
    if (!(to > this.offset) || this.destroyed) return;
    this.offset = to;
    this.gapBytes += to - gap.from;
    // In a turn of its own: what a listener throws is not ours to catch.
    process.nextTick(() => {
      const heard = this.emit('gap', gap);
      if (!this.#gap(gap) && !heard) {
        this.#failed(new PinfoldError('gap', `bytes ${gap.from} to ${gap.to} of ${this.name} cannot be read any more`, {
          remedy: "read faster, ask for a larger maxBytes, or listen to 'gap'", details: { from: String(gap.from), to: String(to) },
        }));
      }
    });
  }

  /**
   * Whether an answer that ended was the last: the stream has ended, or twice
   * nothing came, and nothing is there, of a process that is over. Once can be
   * the service's end.
   */
  async #over(nothing) {
    const all = (info) => !(info.output?.[this.name]?.bytes_total > this.offset);
    const ended = (info) => info.output?.[this.name]?.eof && all(info);
    const info = ended(this.#process.info) ? this.#process.info : await this.#process.refresh();
    this.#empty = nothing && all(info) && info.status.state !== 'running' ? this.#empty + 1 : 0;
    if (ended(info) || this.#empty > 1) return true;
    if (nothing) await sleep(50, undefined, { ref: this.#ref, signal: this.#stop.signal });
    return false;
  }
}
