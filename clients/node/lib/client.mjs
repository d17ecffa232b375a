import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { ChildProcess } from './child.mjs';
import { PinfoldError } from './errors.mjs';
import { Events } from './events.mjs';
import { exec } from './exec.mjs';
import { Hold } from './hold.mjs';
import { Job } from './job.mjs';
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
      grace: 'grace_ms', outputMax: 'output_max', onOutputMax: 'on_output_max', wall: 'wall_ms', lease: 'lease_ms', idle: 'idle_ms',
      idleBy: 'idle_by', bind: 'bind', window: 'after_ms', onClientGone: 'on_gone', policy: 'policy', leftoversMax: 'leftovers_max_ms',
      supersede: 'supersede', idempotencyKey: 'idempotency_key',
    });
    const { bind, after_ms: window, on_gone: gone, ...request } = json;
    if (bind ?? window ?? gone) request.client = { bind, after_ms: window, on_gone: gone };
    // With a key it is begun once, however often it is asked for.
    const info = await this.post('/v1/turns', { idempotency_key: randomUUID(), ...request });
    return new Turn(this, info, info.epoch);
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

  /** A turn that somebody began before, by its id; take() makes it ours. */
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

  /** What happens to processes and jobs of a turn that says nothing, by the reason of its end. */
  async policy() {
    return (await this.get('/v1/policy')).policy;
  }

  /**
   * Ends turns: those of turns (ids), session, labels or owner, of which exactly
   * one is to be given. A blank one is refused: it never means all.
   */
  async abandon({ turns, session, labels, owner, reason, grace, jobs, dryRun } = {}) {
    const said = { turns, session, labels, owner };
    const which = Object.values(said).filter((v) => v !== undefined);
    if (which.length !== 1 || (typeof which[0] === 'object' ? Object.keys(which[0]).length === 0 : which[0] === '')) {
      throw new PinfoldError('bad_request', 'say which turns to end: exactly one of turns, session, labels and owner, and not a blank one');
    }
    const timeout = (grace ?? 0) + 2 * this.wire.timeout;
    return this.post('/v1/abandon', { ...said, reason, grace_ms: grace, jobs, dry_run: dryRun }, { timeout });
  }

  /** Whether no process of any turn or job uses a directory: quiet, uses, unseen. */
  quiet(path) {
    return this.get('/v1/quiet', { path: path && resolve(path) });
  }

  /** The jobs that have not ended, or all that are known, oldest first. */
  async jobs({ session, turn, cwd, all } = {}) {
    const query = { session, turn: turn?.id ?? turn, cwd: cwd && resolve(cwd), all: all || undefined };
    return (await this.get('/v1/jobs', query)).jobs.map((j) => new Job(this, j));
  }

  /** One job, by its id. */
  async job(id) {
    return new Job(this, await this.get(`/v1/jobs/${segment(id)}`));
  }

  /**
   * Starts a job beside the turns: file, args and options of spawn, whose output
   * is kept; and of the job name, session, jobLabels, limits, max, grace. It is not
   * repeated when its answer is lost: see then what jobs() tells.
   */
  async startJob(file, args, options) {
    if (!Array.isArray(args)) [args, options] = [[], args];
    const { name, session, jobLabels, limits, max, grace, minGrade, ...spawn } = options ?? {};
    const { stdio, request } = plan(file, args, { stdio: ['ignore', 'pipe', 'pipe'], ...spawn });
    if (stdio.some((s) => typeof s === 'object')) {
      throw new PinfoldError('bad_request', 'a job outlives this process: its streams are pipe, pty or ignore');
    }
    const json = { launch: request, name, session, labels: jobLabels, limits, max_ms: max, grace_ms: grace, min_grade: minGrade };
    const ask = () => this.wire.call('POST', '/v1/jobs', { json, fresh: true });
    return new Job(this, await this.wire.again(ask, { repeatable: false }));
  }

  /** What happened, in order; see Events. */
  events(options) {
    return new Events(this, options);
  }

  /** Says that a consumer has dealt with every event up to a number. True for who says so first. */
  async acknowledge(consumer, seq) {
    const ask = () => this.wire.call('POST', '/v1/events/ack', { json: { consumer, seq }, fresh: true });
    return !(await this.wire.again(ask, { repeatable: false })).repeated;
  }

  /** Closes idle connections. Turns go on. */
  close() {
    this.wire.close();
  }

  get(path, query, options = {}) {
    return this.wire.again(() => this.wire.call('GET', path, { query, ...options }), options);
  }

  /** What can be asked twice. */
  post(path, json, options = {}) {
    return this.wire.again(() => this.wire.call('POST', path, { json, ...options }));
  }
}

/**
 * One unit of work, and everything that runs for it. What changes one that we
 * began, or took, carries the epoch that it had then: once another has taken it,
 * that is stale_epoch, and touches nothing.
 */
/** Field 22 of /proc/PID/stat, which with the number means one process. */
function startTicks(pid) {
  const stat = readFileSync(`/proc/${Number(pid)}/stat`, 'latin1');
  return Number(stat.slice(stat.lastIndexOf(')') + 1).trim().split(/\s+/)[22 - 3]);
}

export class Turn {
  receipt = null;
  #ours; // the epoch in which we are its client

  constructor(client, info, ours) {
    this.client = client;
    this.#ours = ours;
    this.#seen(info);
  }

  /** The epoch, for requests. */
  fence() {
    return this.#ours === undefined ? {} : { epoch: this.#ours };
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

  /** Says that it is wanted: renews the lease, and counts as activity. Answers its clocks. */
  async touch() {
    return (await this.#change('touch')).clocks;
  }

  /** Stops every process of it, its clocks and deadlines. */
  async freeze() {
    this.#seen(await this.#change('freeze'));
  }

  /** Lets them go on. */
  async thaw() {
    this.#seen(await this.#change('thaw'));
  }

  #change(how) {
    return this.client.post(`${this.path}/${how}`, this.fence());
  }

  /** Makes us its client, under a new epoch: who was it is refused from then on. */
  async take({ epoch } = {}) {
    const ask = () => this.client.wire.call('POST', `${this.path}/take`, { json: { epoch }, fresh: true });
    this.#seen(await this.client.wire.again(ask, { repeatable: false }));
    this.#ours = this.epoch;
    return this;
  }

  /** Holds one that is bound to a connection, until the Hold is closed, or we are gone. */
  hold() {
    return new Hold(this).open();
  }

  /** Why it is as it is, and what would end it. */
  why() {
    return this.client.get(`${this.path}/why`);
  }

  /** What abandon would do now. Nothing is touched. */
  plan({ reason, grace, leftovers, jobs } = {}) {
    return this.client.post(`${this.path}/plan`, { reason, grace_ms: grace, leftovers, jobs });
  }

  /** The jobs that were made of its processes, or given to it. */
  jobs({ all } = {}) {
    return this.client.jobs({ turn: this.id, all });
  }

  /** What happened to it, in order. */
  events(options) {
    return this.client.events({ ...options, turn: this.id });
  }

  /** The work is done; what still runs is kept or ended by the turn's policy. Answers the receipt. */
  finish({ leftovers, grace } = {}) {
    return this.#end('finish', { leftovers, grace_ms: grace });
  }

  /** Ends every process of the turn, and nothing else. Answers the receipt. */
  abandon({ reason, grace, leftovers, jobs } = {}) {
    return this.#end('abandon', { reason, grace_ms: grace, leftovers: leftovers || undefined, jobs: jobs || undefined });
  }

  async #end(how, said) {
    const json = { ...said, ...this.fence() };
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
    const json = { idempotency_key: randomUUID(), ...this.fence(), ...request };
    return new Process(this, await wire.again(() => wire.call('POST', `${this.path}/processes`, { json, signal }), { signal }));
  }

  /**
   * Takes a process that runs already into the turn; it stays its parent's child,
   * keeps its streams, and ends with the turn. tree: with its descendants, as far as
   * their parents live. ancestor: even if it is an ancestor of ours, or we. minGrade
   * token: what cannot be moved is held by its identity alone. It is named by its
   * number and start tick, as they are now. Throws code adopt_refused.
   */
  async adopt(pid, { tree, ancestor, minGrade, stopSignal, labels, idempotencyKey } = {}) {
    const { wire } = this.client;
    const json = {
      idempotency_key: idempotencyKey ?? randomUUID(), ...this.fence(), process: { pid, start_ticks: startTicks(pid) },
      tree: tree || undefined, ancestor: ancestor || undefined, min_grade: minGrade, stop_signal: stopSignal, labels,
    };
    return new Process(this, await wire.again(() => wire.call('POST', `${this.path}/adopt`, { json })));
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
