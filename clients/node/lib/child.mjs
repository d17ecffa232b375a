import { EventEmitter } from 'node:events';
import { PinfoldError, aborted, spawnError } from './errors.mjs';
import { InputStream } from './input.mjs';
import { OutputStream } from './output.mjs';
import { signalName } from './plan.mjs';

/**
 * A process of a turn in the shape of child_process.ChildProcess. The parent is
 * somebody else: pid is set with 'spawn', and signals go through the service.
 */
export class ChildProcess extends EventEmitter {
  pid = undefined;
  exitCode = null;
  signalCode = null;
  killed = false;
  connected = false;
  /** The Process, from 'spawn' on; its status says more than exitCode can. */
  process = null;
  #kills = []; // before it is known
  #socket = null;
  #ref = true;
  #over = false;
  #closes = 1; // the exit, and each output stream
  #timer = null;
  #launched; // a promise of the process, or of null
  #all; // streams, also those that are copied
  #unavailable = false; // was told
  #copied; // [from, to] while it runs

  constructor(turn, plan) {
    super();
    this.turn = turn;
    this.spawnfile = plan.file;
    this.spawnargs = plan.args;
    this.#launched = this.#launch(plan);
    this.#streams(plan);
    this.#bounds(plan);
  }

  /** One that runs already. offsets: where its streams were read up to. */
  static reopened(process, { offsets = {}, drain, acknowledge = true } = {}) {
    const { info } = process;
    const kept = (name) => (info.output && name in info.output && !info.acknowledged ? 'pipe' : 'ignore');
    return new ChildProcess(process.turn, {
      file: info.argv?.[0] ?? '', args: info.argv ?? [], process, offsets, drain, acknowledge, timeout: 0,
      stdio: [info.stdin ? 'pipe' : 'ignore', kept('stdout'), kept('stderr')],
    });
  }

  async #launch(plan) {
    try {
      if (plan.signal?.aborted) throw aborted(plan.signal.reason);
      this.process = plan.process ?? await this.turn.launch(plan.request);
    } catch (e) {
      soon(() => this.#failed(e));
      return null;
    }
    soon(() => {
      this.pid = this.process.pid;
      this.emit('spawn');
      this.#kills.splice(0).forEach((s) => this.#signal(s));
    });
    this.#wait(plan);
    return this.process;
  }

  #streams({ stdio, offsets = {}, drain }) {
    const output = (i, name) => {
      if (stdio[i] === 'ignore' || stdio[i] === 'stdout' || (i === 2 && stdio[i] === 'pty')) return null;
      const s = new OutputStream(name, {
        offset: offsets[name], drain, gap: (g) => this.emit('gap', g), failed: (e) => this.#broken(s, e),
      });
      this.#closes++;
      s.once('close', () => this.#maybeClose());
      this.#launched.then((p) => (p === null ? s.destroy() : s.open(p)));
      return s;
    };
    const all = [stdio[0] === 'ignore' ? null : new InputStream(this.#launched), output(1, 'stdout'), output(2, 'stderr')];
    if (all[1] === null && stdio[0] === 'pty') all[1] = output(0, 'stdout');
    this.#copy(stdio, all);
    this.stdio = all.map((s, i) => (typeof stdio[i] === 'object' ? null : s)); // copied ones are not seen
    [this.stdin, this.stdout, this.stderr] = this.stdio;
    this.#all = all;
  }

  #bounds({ timeout, killSignal, signal }) {
    if (timeout > 0) {
      this.#timer = setTimeout(() => { if (!this.killed) this.kill(killSignal); }, timeout);
    }
    if (!signal || signal.aborted) return;
    const abort = () => {
      if (this.kill(killSignal)) this.emit('error', aborted(signal.reason));
    };
    signal.addEventListener('abort', abort, { once: true });
    for (const over of ['exit', 'close']) this.once(over, () => signal.removeEventListener('abort', abort));
  }

  /** Streams of ours that the process would have inherited. */
  #copy(stdio, [stdin, ...outs]) {
    outs.forEach((s, i) => {
      if (s && typeof stdio[i + 1] === 'object') s.pipe(stdio[i + 1], { end: false });
    });
    if (stdin && typeof stdio[0] === 'object') {
      if (stdio[0].readableEnded) stdin.end();
      else stdio[0].pipe(stdin);
      stdin.on('error', () => {}); // the process does not read it: so be it
      this.#copied = [stdio[0], stdin];
    }
  }

  async #wait(plan) {
    let status;
    try {
      status = await this.process.wait({
        ref: () => this.#ref,
        onSocket: (s) => {
          this.#socket = s;
          if (!this.#ref) s.unref();
        },
      });
    } catch (e) {
      soon(() => this.#failed(e));
      return;
    }
    if (plan.acknowledge && this.process.info.output) {
      this.once('close', () => this.process.acknowledge().catch(() => {})); // it goes by itself, later
    }
    soon(() => this.#exited(status));
  }

  #exited(status) {
    this.#finish();
    if (status.state === 'lost') {
      soon(() => this.#flush());
      this.emit('error', new PinfoldError('process_lost', `nobody saw how process ${this.process.id} ended: ${status.why ?? 'unknown'}`));
      return;
    }
    if (status.state === 'exited') this.exitCode = status.code ?? 0;
    else this.signalCode = status.signal;
    soon(() => this.#flush());
    this.emit('exit', this.exitCode, this.signalCode);
  }

  /** Streams that nobody reads are read, so that they come to their end. */
  #flush() {
    for (const s of this.#all.slice(1)) {
      if (s?.readable) s.resume();
    }
    this.#maybeClose();
  }

  /** It was not launched, or nobody knows how it ended. */
  #failed(e) {
    this.#finish();
    if (this.process === null) {
      e = e.code === 'ABORT_ERR' ? e : spawnError(e, this.spawnfile, this.spawnargs.slice(1));
      this.exitCode = e.errno ?? null;
    }
    for (const s of this.#all.slice(1)) s?.destroy();
    soon(() => this.#maybeClose());
    this.#tell(e);
  }

  #finish() {
    this.#over = true;
    clearTimeout(this.#timer);
    if (this.#copied) {
      this.#copied[0].unpipe(this.#copied[1]);
      if (this.#copied[0].listenerCount('data') === 0) this.#copied[0].pause();
    }
    this.#all[0]?.over();
  }

  #maybeClose() {
    if (--this.#closes === 0) this.emit('close', this.exitCode, this.signalCode);
  }

  /** An output stream cannot go on. It is told once, by the stream if somebody listens there. */
  #broken(stream, e) {
    const heard = stream.listenerCount('error') > 0;
    stream.destroy(heard ? e : null);
    if (!heard) this.#tell(e);
  }

  #tell(e) {
    // That nobody answers, several would say.
    if (e.code === 'unavailable' && this.#unavailable) return;
    this.#unavailable = e.code === 'unavailable';
    this.emit('error', e);
  }

  /** Asks the service to send a signal; false when the process is known to be over. */
  kill(sig = 'SIGTERM') {
    if (sig === 0) return !this.#over;
    const name = signalName(sig);
    if (this.#over) return false;
    this.killed = true;
    if (this.pid === undefined) this.#kills.push(name);
    else this.#signal(name);
    return true;
  }

  #signal(name) {
    this.process.signal(name).then((verdict) => {
      if (verdict !== 'owned' && verdict !== 'gone') throw new PinfoldError('not_sent', `${name} was not sent: the process is ${verdict}`);
    }).catch((e) => soon(() => {
      if (!this.#over) this.emit('error', e);
    }));
  }

  /** Gives its terminal another size. */
  async resize(rows, cols) {
    const p = await this.#launched;
    return p === null ? { rows, cols } : p.resize(rows, cols);
  }

  /** Makes a job of it: it outlives the turn, and its streams go on. */
  async promote(options) {
    const p = await this.#launched;
    if (p === null) throw new PinfoldError('not_found', 'the process was not launched');
    return p.promote(options);
  }

  ref() {
    return this.#refer(true);
  }

  unref() {
    return this.#refer(false);
  }

  #refer(ref) {
    const how = ref ? 'ref' : 'unref';
    this.#ref = ref;
    this.#socket?.[how]();
    this.#timer?.[how]();
    return this;
  }

  static {
    if (Symbol.dispose) {
      this.prototype[Symbol.dispose] = function dispose() { if (!this.killed) this.kill(); };
    }
  }
}

/** Not within a promise: what a listener throws is nobody's rejection. */
function soon(f) {
  process.nextTick(f);
}
