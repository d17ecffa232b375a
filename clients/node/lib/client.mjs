import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { ChildProcess } from './child.mjs';
import { PinfoldError } from './errors.mjs';
import { exec } from './exec.mjs';
import { plan } from './plan.mjs';
import { Process } from './process.mjs';
import { Wire } from './wire.mjs';

/** $PINFOLD_SOCKET, else the user's own service if it has a socket, else the system's. */
export function defaultSocket() {
  if (process.env.PINFOLD_SOCKET) {
    return process.env.PINFOLD_SOCKET;
  }
  const own = process.env.XDG_RUNTIME_DIR && `${process.env.XDG_RUNTIME_DIR}/pinfold/pinfold.sock`;
  return own && existsSync(own) ? own : '/run/pinfold/pinfold.sock';
}

/**
 * Where the service is. timeout: for usual answers, in ms. patience: how long
 * what can be repeated is asked again while the service is away, in ms.
 */
export class Client {
  constructor({ socket = defaultSocket(), timeout = 60_000, patience = 60_000 } = {}) {
    this.socket = socket;
    this.wire = new Wire(socket, { timeout, patience });
  }

  /** Opens a turn. */
  async begin(options = {}) {
    const json = renamed(options, {
      label: 'label', labels: 'labels', session: 'session', minGrade: 'min_grade', limits: 'limits', leftovers: 'leftovers',
      grace: 'grace_ms', outputMax: 'output_max', onOutputMax: 'on_output_max',
    });
    // Not repeated when its answer is lost: nobody would end the first turn.
    const info = await this.wire.again(() => this.wire.call('POST', '/v1/turns', { json, fresh: true }), { repeatable: false });
    return new Turn(this, info);
  }

  /** Calls fn with a turn; finishes it when that returns, abandons it when it throws. */
  async run(options, fn) {
    const turn = await this.begin(options);
    let result;
    try {
      result = await fn(turn);
    } catch (e) {
      await turn.abandon().catch((cause) => { e.cause ??= cause; });
      throw e;
    }
    await turn.finish();
    return result;
  }

  /** A turn that somebody began before, by its id. */
  async attach(id) {
    return new Turn(this, await this.get(`/v1/turns/${segment(id)}`));
  }

  /** The turns that are not over, or all that are known: the API's records. */
  async turns({ all, session, state } = {}) {
    return (await this.get('/v1/turns', { all: all ? 'true' : undefined, session, state })).turns;
  }

  host() {
    return this.get('/v1/host');
  }

  receipt(turn) {
    return this.get(`/v1/turns/${segment(turn)}/receipt`);
  }

  async receipts(limit = 100) {
    return (await this.get('/v1/receipts', { limit })).receipts;
  }

  /** Closes idle connections. Turns go on. */
  close() {
    this.wire.close();
  }

  get(path, query, options = {}) {
    return this.wire.again(() => this.wire.call('GET', path, { query, ...options }), options);
  }
}

/** One unit of work, and everything that runs for it. */
export class Turn {
  receipt = null;

  constructor(client, info) {
    this.client = client;
    this.#seen(info);
  }

  #seen(info) {
    this.info = info;
    this.id = info.id;
    this.epoch = info.epoch;
    this.grade = info.grade;
    this.path = `/v1/turns/${info.id}`;
  }

  /** Looks at it again: state, processes, alive and all. */
  async refresh() {
    this.#seen(await this.client.get(this.path));
    return this.info;
  }

  /** The processes that it holds now, descendants included. */
  async tree() {
    return (await this.client.get(`${this.path}/tree`)).members;
  }

  /** What was launched in it, oldest first. */
  async processes() {
    return (await this.client.get(`${this.path}/processes`)).processes.map((p) => new Process(this, p));
  }

  async process(id) {
    return new Process(this, await this.client.get(`${this.path}/processes/${segment(id)}`));
  }

  /** Its state once it is over. */
  async wait({ timeout, signal } = {}) {
    this.#seen(await this.client.get(`${this.path}/wait`, { timeout_ms: timeout }, { timeout: 0, signal }));
    return this.info.state;
  }

  /** The work is done; what still runs is kept or ended by the turn's policy. Answers the receipt. */
  finish({ leftovers, grace } = {}) {
    return this.#end('finish', { leftovers, grace_ms: grace });
  }

  /** Ends every process of the turn, and nothing else. Answers the receipt. */
  abandon({ reason, grace, leftovers } = {}) {
    return this.#end('abandon', { reason, grace_ms: grace, leftovers: leftovers || undefined });
  }

  async #end(how, json) {
    // The service bounds an ending: a grace, and then some seconds. Of several
    // the first stands and all get its receipt, so it can be asked again.
    const timeout = (json.grace_ms ?? 0) + 2 * this.client.wire.timeout;
    const { wire } = this.client;
    this.receipt = await wire.again(() => wire.call('POST', `${this.path}/${how}`, { json, timeout }));
    return this.receipt;
  }

  /**
   * Starts a process: the API's LaunchRequest as it is. With an idempotency
   * key, which it gets unless it has one, a request whose answer was lost is
   * asked again and launches once.
   */
  async launch(request, { signal } = {}) {
    const { wire } = this.client;
    const json = { idempotency_key: randomUUID(), ...request };
    return new Process(this, await wire.again(() => wire.call('POST', `${this.path}/processes`, { json, signal }), { signal }));
  }

  /** child_process.spawn, in the turn. */
  spawn(file, args, options) {
    return new ChildProcess(this, plan(file, args, options));
  }

  /** The child of a process that was launched before, maybe by somebody else. */
  async reopen(id, options = {}) {
    return ChildProcess.reopened(await this.process(id), options);
  }

  /** child_process.execFile, in the turn; a promise that has `child`. */
  exec(file, args, options) {
    return exec(this, file, args, options);
  }

  /** Leaving an `await using` block without finish abandons the turn. */
  async #dispose() {
    if (this.receipt === null) {
      await this.abandon();
    }
  }

  static {
    if (Symbol.asyncDispose) { // Node 18.18
      this.prototype[Symbol.asyncDispose] = function dispose() { return this.#dispose(); };
    }
  }
}

/** An id, as a segment of a path. */
function segment(id) {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(id)) {
    throw new PinfoldError('bad_request', `${JSON.stringify(id)} is not an id`);
  }
  return id;
}

/** Options by the API's names; an unknown one is refused. */
function renamed(options, names) {
  const said = {};
  for (const [k, v] of Object.entries(options)) {
    if (!(k in names)) {
      throw new PinfoldError('bad_request', `there is no option ${k}: there are ${Object.keys(names).join(', ')}`);
    }
    said[names[k]] = v;
  }
  return said;
}
