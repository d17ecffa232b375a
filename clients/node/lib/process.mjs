import { Job } from './job.mjs';
import { OutputStream } from './output.mjs';

/**
 * A launched process, by its id. `pid` is for people: signals go through the
 * service, which knows a process from a number. `info` is what was last seen.
 */
export class Process {
  #looking = null;

  constructor(turn, info) {
    this.turn = turn;
    this.info = info;
    this.id = info.id;
    this.pid = info.pid;
    this.path = `${turn.path}/processes/${info.id}`;
  }

  get status() {
    return this.info.status;
  }

  get running() {
    return this.info.status.state === 'running';
  }

  /** Looks at it again. Several who ask at once share a request. */
  refresh() {
    this.#looking ??= this.turn.client.get(this.path)
      .then((info) => { this.info = info; return info; })
      .finally(() => { this.#looking = null; });
    return this.#looking;
  }

  /**
   * Its status once it has ended, whoever still holds its pipes. Goes on over a
   * restart of the service. Throws code timeout after `timeout` ms.
   */
  async wait({ timeout, signal, onSocket, ref } = {}) {
    if (this.running) {
      this.info = await this.turn.client.get(`${this.path}/wait`, { timeout_ms: timeout }, { timeout: 0, signal, onSocket, ref });
    }
    return this.status;
  }

  /** Sends a signal. Answers the verdict: owned is sent, gone had ended, others are not sent. */
  async signal(sig) {
    const ask = () => this.#post('signal', { json: { signal: String(sig), ...this.turn.fence() } });
    return (await this.turn.client.wire.again(ask, { repeatable: false })).verdict;
  }

  /** Ends it with all that it has forked, or all but itself. The turn goes on. */
  end({ grace, descendantsOnly, dryRun } = {}) {
    const { client } = this.turn;
    const json = { grace_ms: grace, descendants_only: descendantsOnly, dry_run: dryRun, ...this.turn.fence() };
    return client.post(`${this.path}/end`, json, { timeout: (grace ?? 0) + 2 * client.wire.timeout });
  }

  /**
   * Makes a job of it, with all that it has forked, or, with pid, of one of its
   * descendants. It keeps output, terminal and exit status, and outlives the turn.
   */
  async promote({ pid, name, session, labels, max } = {}) {
    const json = { pid, name, session, labels, max_ms: max, ...this.turn.fence() };
    return new Job(this.turn.client, await this.turn.client.post(`${this.path}/promote`, json));
  }

  /**
   * Writes to its stdin, of mode pipe or pty, at most 128 KiB at a time.
   * Answers when it is taken, which is as fast as the process reads.
   */
  async write(data, { close = false, signal } = {}) {
    const ask = () => this.#post('stdin', {
      body: data, headers: { 'Content-Type': 'application/octet-stream' }, query: { close: close || undefined, ...this.turn.fence() }, timeout: 0,
      signal,
    });
    return this.turn.client.wire.again(ask, { repeatable: data.length === 0, signal });
  }

  /** Gives its terminal another size. Answers the size that it has now. */
  async resize(rows, cols) {
    const { rows: r, cols: c } = await this.turn.client.wire.again(() => this.#post('resize', { json: { rows, cols } }));
    return { rows: r, cols: c };
  }

  /** Says that exit and output were taken: the output is removed. */
  async acknowledge() {
    this.info = await this.turn.client.wire.again(() => this.#post('ack', { json: {} }));
  }

  /** Kept output that is there: `data` begins at `offset`, go on at `next`. Ends at a gap. */
  async read({ stream = 'stdout', offset, tail, limit } = {}) {
    const { wire } = this.turn.client;
    return wire.again(async () => {
      const res = await wire.open('GET', `${this.path}/output`, { query: { stream, offset, tail, limit }, timeout: wire.timeout });
      const data = await wire.bytes(res);
      const number = (name) => Number(res.headers[name] ?? 0);
      const at = number('pinfold-offset');
      return {
        data, offset: at, next: Number(res.trailers['pinfold-next-offset'] ?? at + data.length),
        total: number('pinfold-total'), dropped: number('pinfold-dropped'),
      };
    });
  }

  /** Its output from an offset on, and what comes. */
  follow({ stream = 'stdout', offset = 0, drain } = {}) {
    const s = new OutputStream(stream, { offset, drain });
    s.open(this);
    return s;
  }

  #post(what, options) {
    // A connection of its own: on one that was idle, a request that is cut off
    // may or may not have been seen.
    return this.turn.client.wire.call('POST', `${this.path}/${what}`, { fresh: true, ...options });
  }
}
