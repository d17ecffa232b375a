import { Process } from './process.mjs';

/**
 * A process, with all that it has forked, that outlives turns, by its id.
 * `process` is the launch: output, stdin, signals and exit status are there, also
 * when its turn is over. `info` is what was last seen.
 */
export class Job {
  constructor(client, info) {
    this.client = client;
    this.id = info.id;
    this.path = `/v1/jobs/${info.id}`;
    this.info = info;
    const turn = { client, id: info.turn, path: `/v1/turns/${info.turn}`, fence: () => ({}) };
    this.process = new Process(turn, { id: info.process, pid: info.pid, argv: info.argv, status: info.status, output: info.output });
  }

  get name() {
    return this.info.name ?? '';
  }

  get session() {
    return this.info.session ?? '';
  }

  /** running; lingering: the process has ended, and something that it forked runs on; ended. */
  get state() {
    return this.info.state;
  }

  get status() {
    return this.info.status;
  }

  /** Looks at it again. */
  async refresh() {
    this.info = await this.client.get(this.path);
    return this.info;
  }

  /** The process's status once nothing of the job runs any more. */
  async wait({ timeout, signal } = {}) {
    this.info = await this.client.get(`${this.path}/wait`, { timeout_ms: timeout }, { timeout: 0, signal });
    return this.status;
  }

  /** Ends every process of the job, and nothing else. */
  async stop({ grace, reason } = {}) {
    const timeout = (grace ?? 0) + 2 * this.client.wire.timeout;
    this.info = await this.client.post(`${this.path}/stop`, { grace_ms: grace, reason }, { timeout });
    return this.info;
  }

  /** Gives it to another session, or to that of another turn, with which it is listed then. */
  async give({ session, turn } = {}) {
    this.info = await this.client.post(`${this.path}/transfer`, { session, turn: turn?.id ?? turn });
    return this.info;
  }
}
