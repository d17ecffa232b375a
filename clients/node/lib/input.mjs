import { Writable } from 'node:stream';
import { systemError } from './errors.mjs';

// One request: so much is taken or not, and the service need not hold it all.
const most = 128 << 10;

/**
 * stdin of a process. A write is done when the process's pipe, or a buffer of
 * bounded size before it, has taken the bytes. One that was under way when the
 * service went is an error of the stream, with code unavailable: nobody knows
 * how much of it was taken.
 */
export class InputStream extends Writable {
  #ready;
  #stop = new AbortController();
  #over = false; // nobody reads it any more, or it was closed

  /** ready is a promise of the process, or of null when there will be none. */
  constructor(ready, { highWaterMark = 1 << 16 } = {}) {
    super({ highWaterMark });
    this.#ready = ready;
  }

  /** The process is over. */
  over() {
    this.#over = true;
    this.destroy();
  }

  _write(data, encoding, done) {
    this.#send(data).then(() => done(), done);
  }

  _writev(chunks, done) {
    this.#sendAll(chunks.map((c) => c.chunk)).then(() => done(), done);
  }

  _final(done) {
    this.#close().then(() => done(), done);
  }

  /** Closes the process's stdin too, as closing a pipe does. */
  _destroy(error, done) {
    this.#stop.abort();
    if (!this.#over) {
      this.#close().catch(() => {}); // there is nobody left to tell
    }
    done(error);
  }

  /** Small chunks go together, large ones in pieces. */
  async #sendAll(chunks) {
    let some = [];
    let size = 0;
    for (const c of chunks) {
      if (size > 0 && size + c.length > most) {
        await this.#send(Buffer.concat(some));
        some = [];
        size = 0;
      }
      some.push(c);
      size += c.length;
    }
    await this.#send(some.length === 1 ? some[0] : Buffer.concat(some));
  }

  async #send(data) {
    for (let at = 0; at < data.length; at += most) {
      await this.#write(data.subarray(at, at + most));
    }
  }

  async #write(data) {
    const process = await this.#ready;
    if (process === null || this.#over) throw systemError('EPIPE', 'write');
    try {
      await process.write(data, { signal: this.#stop.signal });
    } catch (e) {
      if (e.code === 'stdin_closed' || this.#over) throw systemError('EPIPE', 'write', { cause: e });
      throw e;
    }
  }

  async #close() {
    const process = await this.#ready;
    if (process === null || this.#over) return;
    this.#over = true;
    try {
      await process.write(Buffer.alloc(0), { close: true });
    } catch (e) {
      if (e.code !== 'stdin_closed') throw e;
    }
  }
}
