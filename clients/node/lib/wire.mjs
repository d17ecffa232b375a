import http from 'node:http';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { PinfoldError, aborted, answered, unanswered } from './errors.mjs';

/** HTTP over the service's socket. */
export class Wire {
  // The service closes idle connections after two minutes; we do before.
  #agent = new http.Agent({ keepAlive: true, maxFreeSockets: 8, timeout: 60_000 });

  constructor(socket, { timeout, patience }) {
    this.socket = socket;
    this.timeout = timeout;
    this.patience = patience;
  }

  /**
   * Sends a request and gives its answer, unread, once that is no error.
   * `fresh` takes a connection of its own, whose loss says that the request may
   * have been seen; `timeout` bounds the time until the answer begins.
   */
  open(method, path, { query, headers = {}, body, fresh = false, timeout = 0, signal, onSocket } = {}) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(aborted(signal.reason));
        return;
      }
      const req = http.request({
        socketPath: this.socket, host: 'pinfold', agent: fresh ? false : this.#agent,
        method, path: path + search(query), headers: body === undefined ? headers : { ...headers, 'Content-Length': body.length },
      });
      const stop = () => req.destroy(aborted(signal.reason));
      const timer = timeout > 0 ? setTimeout(() => req.destroy(Object.assign(new Error(`no answer within ${timeout} ms`), { silent: true })), timeout) : undefined;
      const settle = (how, value) => {
        clearTimeout(timer);
        how(value);
      };
      signal?.addEventListener('abort', stop, { once: true });
      req.once('close', () => signal?.removeEventListener('abort', stop));
      req.on('error', (e) => settle(reject, e.code === 'ABORT_ERR' ? e : unanswered(e, this.socket)));
      if (onSocket) {
        req.once('socket', (s) => onSocket(s));
      }
      req.once('response', (res) => {
        if (res.statusCode < 400) {
          settle(resolve, res);
          return;
        }
        this.bytes(res).then((b) => settle(reject, answered(res.statusCode, b.toString())), (e) => settle(reject, e));
      });
      req.end(body);
    });
  }

  /** Asks for JSON. */
  async call(method, path, { json, ...options } = {}) {
    const o = { timeout: this.timeout, ...options };
    if (json !== undefined) {
      o.body = Buffer.from(JSON.stringify(json));
      o.headers = { 'Content-Type': 'application/json' };
    }
    const res = await this.open(method, path, o);
    const body = await this.bytes(res);
    try {
      return JSON.parse(body.toString());
    } catch (cause) {
      throw new PinfoldError('bad_answer', `the answer to ${method} ${path} is no JSON`, { cause, status: res.statusCode });
    }
  }

  /** The rest of an answer. */
  async bytes(res) {
    const parts = [];
    try {
      for await (const b of res) {
        parts.push(b);
      }
      if (!res.complete) throw new Error('the answer was cut off');
    } catch (e) {
      throw e.code === 'ABORT_ERR' ? e : unanswered(e, this.socket);
    }
    return Buffer.concat(parts);
  }

  /**
   * Asks, and asks again while the service is away, for up to `patience`. What
   * cannot be repeated is repeated only if it was surely not seen.
   */
  async again(ask, { repeatable = true, ref = () => true, signal } = {}) {
    for (let since = 0, pause = 20; ; pause = Math.min(2 * pause, 1000)) {
      const began = performance.now();
      try {
        return await ask();
      } catch (e) {
        if (!away(e) || (e.sent && !repeatable)) {
          throw e;
        }
        const now = performance.now();
        if (since === 0 || (now - began > 1000 && !e.cause?.silent)) { // it was there a moment ago
          since = now;
          pause = 20;
        }
        if (now + pause > since + this.patience) {
          throw e;
        }
      }
      await sleep(pause, undefined, { ref: ref(), signal });
    }
  }

  close() {
    this.#agent.destroy();
  }
}

/** Whether nobody answered. */
export function away(e) {
  return e instanceof PinfoldError && e.code === 'unavailable';
}

function search(query = {}) {
  const said = Object.entries(query).filter(([, v]) => v !== undefined && v !== '');
  return said.length > 0 ? `?${new URLSearchParams(said)}` : '';
}
