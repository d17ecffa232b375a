// Types of pinfold.mjs. Options are in camel case and milliseconds; records are
// the API's JSON as it is (api/openapi.json), in snake case.
/// <reference types="node" />
import { EventEmitter } from 'node:events';
import { Readable, Writable } from 'node:stream';

export type Grade = 'auto' | 'scope' | 'cgroup' | 'pidns' | 'subreaper' | 'token';
export type TurnState = 'open' | 'finishing' | 'ending' | 'finished' | 'abandoned' | 'unkillable' | 'lost';
export type Reason =
  | 'finished' | 'stop' | 'superseded' | 'idle' | 'wall' | 'client_gone' | 'lease_expired' | 'limit' | 'operator' | 'keeper_lost';
export type Verdict = 'owned' | 'gone' | 'foreign' | 'unverifiable';
export type Leftovers = 'keep' | 'reap';
export type StreamName = 'stdout' | 'stderr';
type Signal = NodeJS.Signals | number;

export interface Limits {
  memory_bytes?: number;
  swap_bytes?: number;
  pids?: number;
  cpu_percent?: number;
}

export interface Status {
  state: 'running' | 'exited' | 'signaled' | 'oom' | 'lost';
  code?: number;
  signal?: NodeJS.Signals;
  signal_number?: number;
  core?: boolean;
  why?: string;
  /** deadline or stop, when it was ended for that */
  ended_by?: string;
}

export type Activity = 'touch' | 'output' | 'cpu' | 'io';
export type Fate = 'end' | 'keep';
export type Policy = Partial<Record<Reason, { processes?: Fate; jobs?: Fate }>>;

export interface Clock {
  name: 'wall' | 'lease' | 'idle' | 'client' | 'leftovers' | 'job';
  limit_ms: number;
  left_ms: number;
  running: boolean;
  due_at?: string;
}

export interface Target {
  pid: number;
  process?: string;
  job?: string;
  comm?: string;
  argv?: string[];
  age_ms: number;
  rss_bytes: number;
  verdict: Verdict;
  evidence: string;
  would: 'signalled' | 'kept' | 'refused';
  why?: string;
}

/** A process of a turn that listens on a socket which others use. */
export interface Server {
  pid: number;
  process?: string;
  comm?: string;
  /** unix:/path, tcp:127.0.0.1:80 */
  socket: string;
  clients: Member[];
}

/** A process of a turn that is connected to a daemon outside it. */
export interface Served {
  pid: number;
  process?: string;
  comm?: string;
  socket: string;
  by: Member[];
}

export interface Plan {
  turn: string;
  state: TurnState;
  reason: Reason;
  grace_ms: number;
  targets: Target[];
  servers: Server[];
  served_by?: Served[];
  notes?: string[];
  [more: string]: unknown;
}

export interface Why {
  turn: string;
  state: TurnState;
  epoch: number;
  because: string[];
  clocks: Clock[];
  ends: Array<{ reason: Reason; when: string; at?: string }>;
  targets: Target[];
  servers: Server[];
  served_by?: Served[];
  jobs: string[];
  [more: string]: unknown;
}

export interface JobInfo {
  id: string;
  name?: string;
  labels?: Record<string, string>;
  session?: string;
  owner: number;
  state: 'running' | 'lingering' | 'ended';
  origin: 'started' | 'promoted' | 'ejected';
  turn: string;
  process: string;
  listed?: string;
  pid: number;
  argv: string[];
  cwd?: string;
  status: Status;
  created_at: string;
  started_at: string;
  ended_at?: string;
  reason?: Reason;
  clocks?: Clock[];
  alive: number;
  output?: Partial<Record<StreamName, StreamStatus>>;
  [more: string]: unknown;
}

export interface EndedProcess {
  turn: string;
  process: string;
  status: Status;
  ended: number;
  complete: boolean;
  survivors: Array<Record<string, unknown>>;
  targets?: Target[];
}

export interface Abandoned {
  receipts: Receipt[];
  plans?: Plan[];
  jobs?: JobInfo[];
  refused: Array<{ id: string; error: { code: string; message: string; [more: string]: unknown } }>;
}

export interface Quiet {
  path: string;
  quiet: boolean;
  uses: Array<{ turn: string; job?: string; process?: string; pid: number; comm?: string; how: 'cwd' | 'root' | 'exe' | 'open' | 'map'; path: string }>;
  unseen: string[];
}

export interface AdoptOptions {
  /** With its descendants, as far as their parents live. */
  tree?: boolean;
  /** Even if it is an ancestor of ours, or we. */
  ancestor?: boolean;
  /** token: what cannot be moved is held by its identity alone. */
  minGrade?: string;
  stopSignal?: string;
  labels?: Record<string, string>;
  idempotencyKey?: string;
}

export type EventKind =
  | 'begun' | 'launch' | 'adopted' | 'exit' | 'oom' | 'limit' | 'degraded' | 'frozen' | 'thawed' | 'taken' | 'client_gone' | 'ending' | 'ended'
  | 'unkillable' | 'resolved' | 'leftover' | 'outside' | 'job' | 'gap';

export interface TurnEvent {
  seq: number;
  at: string;
  kind: EventKind;
  owner: number;
  turn?: string;
  epoch?: number;
  session?: string;
  process?: string;
  job?: string;
  state?: TurnState;
  reason?: Reason;
  status?: Status;
  /** The turn was being ended, or had ended: nothing that waits for it is to be woken. */
  stopped?: boolean;
  message?: string;
}

export interface EventsOptions {
  /** Begin after this number; -1: what happens from now on. */
  after?: number;
  /** Begin after what it has acknowledged. */
  consumer?: string;
  turn?: string;
  session?: string;
  kinds?: Iterable<EventKind>;
  follow?: boolean;
  signal?: AbortSignal;
}

export interface StreamStatus {
  bytes_total: number;
  bytes_dropped: number;
  bytes_lost?: number;
  max_bytes: number;
  eof: boolean;
  error?: string;
}

export interface ProcessInfo {
  id: string;
  turn: string;
  pid: number;
  argv: string[];
  cwd?: string;
  uid: number;
  labels?: Record<string, string>;
  status: Status;
  started_at: string;
  ended_at?: string;
  grade: Grade;
  stdin?: 'pipe' | 'pty';
  terminal?: boolean;
  output?: Partial<Record<StreamName, StreamStatus>>;
  deadline?: string;
  acknowledged?: boolean;
  repeated?: boolean;
  [more: string]: unknown;
}

export interface TurnInfo {
  id: string;
  epoch: number;
  label?: string;
  labels?: Record<string, string>;
  session?: string;
  owner: number;
  state: TurnState;
  reason?: Reason;
  grade: Grade;
  leftovers: Leftovers;
  created_at: string;
  ended_at?: string;
  cgroup?: string;
  degraded?: string[];
  processes: ProcessInfo[];
  alive: number;
  [more: string]: unknown;
}

export interface Receipt {
  turn: string;
  state: TurnState;
  reason: Reason;
  grade: Grade;
  mechanism: string;
  complete: boolean;
  counts: { ended: number; already_gone: number; foreign: number; unverifiable: number; survivors: number };
  processes: Array<{ id: string; pid: number; argv?: string[]; status: Status; ended_by: string; verdict: Verdict; [more: string]: unknown }>;
  leftovers: Array<Record<string, unknown>>;
  outside: Array<Record<string, unknown>>;
  survivors: Array<Record<string, unknown>>;
  usage: Record<string, number>;
  notes?: string[];
  [more: string]: unknown;
}

export interface Member {
  pid: number;
  ppid: number;
  uid: number;
  state: string;
  comm: string;
  process?: string;
  cgroup: string;
  rss_bytes: number;
  age_ms: number;
}

export interface Gap {
  stream: StreamName;
  from: number;
  /** Of the first byte after it. */
  to: number;
}

/** What the service refused (its codes), or: unavailable, process_lost, not_sent, gap, bad_answer. */
export class PinfoldError extends Error {
  readonly code: string;
  readonly remedy: string;
  readonly details: Record<string, string>;
  /** Of HTTP; 0 without an answer. */
  readonly status: number;
  readonly grade?: Grade;
}

export interface ClientOptions {
  /** Default: $PINFOLD_SOCKET, else the user's own service if there is one, else the system's. */
  socket?: string;
  /** For usual answers; default 60 s. */
  timeout?: number;
  /** How long what can be repeated is asked again while the service is away; default 60 s. */
  patience?: number;
}

export interface BeginOptions {
  label?: string;
  labels?: Record<string, string>;
  session?: string;
  minGrade?: Grade;
  limits?: Limits;
  leftovers?: Leftovers;
  /** Between TERM and KILL when an ending names none. */
  grace?: number;
  outputMax?: number;
  onOutputMax?: 'drop' | 'stop';
  /** Ends it when it is older. */
  wall?: number;
  /** Ends it when touch() has not renewed it for so long. */
  lease?: number;
  /** Ends it when nothing of idleBy was seen for so long. */
  idle?: number;
  /** Default: all. */
  idleBy?: readonly Activity[];
  /** What makes us its client: that this process lives, or that hold() holds it. */
  bind?: 'none' | 'process' | 'connection';
  /** How long the client may be gone. */
  window?: number;
  onClientGone?: 'abandon' | 'detach';
  /** What differs from Client.policy(). */
  policy?: Policy;
  /** How long what it left running is kept. */
  leftoversMax?: number;
  /** Ends the open turns of the same session. */
  supersede?: boolean;
  /** The same request with the same key begins one turn while that is open. Default: a key of its own. */
  idempotencyKey?: string;
}

export interface JobOptions extends Omit<SpawnOptions, 'signal' | 'timeout' | 'killSignal' | 'idempotencyKey' | 'drain' | 'acknowledge'> {
  /** For people. */
  name?: string;
  session?: string;
  jobLabels?: Record<string, string>;
  limits?: Limits;
  /** Ends it when it is older. */
  max?: number;
  /** Between TERM and KILL when it is stopped. */
  grace?: number;
}

export interface PromoteOptions {
  /** Only this descendant, with its own. */
  pid?: number;
  name?: string;
  /** Default: the turn's. */
  session?: string;
  labels?: Record<string, string>;
  max?: number;
}

export function defaultSocket(): string;

export class Client {
  constructor(options?: ClientOptions);
  readonly socket: string;
  begin(options?: BeginOptions): Promise<Turn>;
  /** Finishes the turn when fn returns, abandons it when it throws. */
  run<T>(options: BeginOptions, fn: (turn: Turn) => T | Promise<T>): Promise<T>;
  attach(turn: string): Promise<Turn>;
  turns(options?: { all?: boolean; session?: string; state?: TurnState }): Promise<TurnInfo[]>;
  host(): Promise<Record<string, unknown>>;
  receipt(turn: string): Promise<Receipt>;
  receipts(limit?: number): Promise<Receipt[]>;
  policy(): Promise<Required<Policy>>;
  /** Exactly one of turns, session, labels and owner says which; a blank one is refused. */
  abandon(options: {
    turns?: readonly string[]; session?: string; labels?: Record<string, string>; owner?: number;
    reason?: Reason; grace?: number; jobs?: boolean; dryRun?: boolean;
  }): Promise<Abandoned>;
  /** Whether no process of any turn or job uses a directory. */
  quiet(path: string): Promise<Quiet>;
  jobs(options?: { session?: string; turn?: Turn | string; cwd?: string; all?: boolean }): Promise<Job[]>;
  job(id: string): Promise<Job>;
  /** Its output is kept, unless stdio says otherwise. */
  startJob(file: string, options?: JobOptions): Promise<Job>;
  startJob(file: string, args: readonly string[], options?: JobOptions): Promise<Job>;
  events(options?: EventsOptions): Events;
  /** True for who says first that a consumer has dealt with every event up to a number. */
  acknowledge(consumer: string, seq: number): Promise<boolean>;
  close(): void;
}

/** What happened, in order; with follow also what comes, over restarts of the service. */
export class Events implements AsyncIterable<TurnEvent> {
  private constructor();
  /** The number of the last that was given, or passed over. */
  readonly after?: number;
  [Symbol.asyncIterator](): AsyncIterator<TurnEvent>;
}

/** A turn that is held: its client is there until this is closed, or this process is gone. */
export class Hold implements AsyncDisposable {
  private constructor();
  readonly turn: Turn;
  /** The turn's state once it is over. Fails with stale_epoch when another took it, with unavailable when this was closed. */
  readonly over: Promise<TurnState>;
  close(): void;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A process, with all that it has forked, that outlives turns, by its id. */
export class Job {
  private constructor();
  readonly client: Client;
  readonly id: string;
  readonly name: string;
  readonly session: string;
  readonly info: JobInfo;
  readonly state: JobInfo['state'];
  readonly status: Status;
  /** The launch: output, stdin, signals. */
  readonly process: Process;
  refresh(): Promise<JobInfo>;
  /** Until nothing of it runs any more. */
  wait(options?: { timeout?: number; signal?: AbortSignal }): Promise<Status>;
  stop(options?: { grace?: number; reason?: Reason }): Promise<JobInfo>;
  give(to: { session?: string; turn?: Turn | string }): Promise<JobInfo>;
}

/** Disposing it (`await using`) without finish() abandons it. */
export class Turn implements AsyncDisposable {
  private constructor();
  readonly client: Client;
  readonly id: string;
  readonly epoch: number;
  readonly grade: Grade;
  readonly info: TurnInfo;
  readonly receipt: Receipt | null;
  spawn(file: string, options?: SpawnOptions): ChildProcess;
  spawn(file: string, args?: readonly string[] | null, options?: SpawnOptions): ChildProcess;
  exec(file: string, options?: ExecOptions<StringEncoding>): ExecPromise<string>;
  exec(file: string, args?: readonly string[] | null, options?: ExecOptions<StringEncoding>): ExecPromise<string>;
  exec(file: string, options: ExecOptions<'buffer' | null>): ExecPromise<Buffer>;
  exec(file: string, args: readonly string[] | null, options: ExecOptions<'buffer' | null>): ExecPromise<Buffer>;
  /** Takes a process that runs already into the turn. */
  adopt(pid: number, options?: AdoptOptions): Promise<Process>;
  /** The API's LaunchRequest as it is; an idempotency key is added. */
  launch(request: { argv: readonly string[]; [field: string]: unknown }, options?: { signal?: AbortSignal }): Promise<Process>;
  process(id: string): Promise<Process>;
  processes(): Promise<Process[]>;
  /** The child of a process that was launched before. offsets: how far its streams were read. */
  reopen(id: string, options?: { offsets?: Partial<Record<StreamName, number>>; drain?: number; acknowledge?: boolean }): Promise<ChildProcess>;
  refresh(): Promise<TurnInfo>;
  tree(): Promise<Member[]>;
  wait(options?: { timeout?: number; signal?: AbortSignal }): Promise<TurnState>;
  finish(options?: { leftovers?: Leftovers; grace?: number }): Promise<Receipt>;
  abandon(options?: { reason?: Reason; grace?: number; leftovers?: boolean; jobs?: boolean }): Promise<Receipt>;
  touch(): Promise<Clock[]>;
  freeze(): Promise<void>;
  thaw(): Promise<void>;
  /** Makes us its client: who was it is refused, with stale_epoch, from then on. */
  take(options?: { epoch?: number }): Promise<this>;
  hold(): Promise<Hold>;
  why(): Promise<Why>;
  plan(options?: { reason?: Reason; grace?: number; leftovers?: boolean; jobs?: boolean }): Promise<Plan>;
  jobs(options?: { all?: boolean }): Promise<Job[]>;
  events(options?: Omit<EventsOptions, 'turn'>): Events;
  [Symbol.asyncDispose](): Promise<void>;
}

type StdioIn = 'pipe' | 'overlapped' | 'ignore' | 'inherit' | 'pty' | Readable | 0 | null | undefined;
type StdioOut = 'pipe' | 'overlapped' | 'ignore' | 'inherit' | 'pty' | Writable | 1 | 2 | null | undefined;

export interface SpawnOptions {
  cwd?: string | URL;
  /** Exact; default process.env. */
  env?: NodeJS.ProcessEnv;
  /** Laid over env; null removes. */
  envAdd?: Record<string, string | null>;
  stdio?: 'pipe' | 'overlapped' | 'ignore' | 'inherit' | 'pty' | readonly [StdioIn?, StdioOut?, (StdioOut | 'stdout')?, ...('ignore' | null | undefined)[]];
  shell?: boolean | string;
  /** Root only, as are group and groups. */
  uid?: number | string;
  gid?: number | string;
  user?: string | number;
  group?: string | number;
  groups?: readonly (string | number)[];
  signal?: AbortSignal;
  timeout?: number;
  killSignal?: Signal;
  /** A terminal for all three streams, or those whose stdio is 'pty'; its output is stdout. */
  pty?: { rows?: number; cols?: number };
  umask?: number;
  rlimits?: Record<string, { soft: number; hard: number }>;
  nice?: number;
  oomScoreAdj?: number;
  noNewPrivs?: boolean;
  stopSignal?: string;
  /** Kept by the service: stop signal, grace, kill of the process with its descendants. */
  deadline?: number;
  labels?: Record<string, string>;
  minGrade?: Grade;
  cwdPolicy?: 'must_exist' | 'nearest';
  /** How far it may get ahead of who reads a stream: what is kept of it; default 64 MiB, at most 1 GiB. */
  maxBytes?: number;
  idempotencyKey?: string;
  /** How long after the exit output is waited for, when a descendant holds it; default: until it ends. */
  drain?: number;
  /** Whether the service may forget the output on 'close'; default true. */
  acknowledge?: boolean;
  detached?: boolean;
}

type StringEncoding = BufferEncoding | undefined;

export interface ExecOptions<E> extends SpawnOptions {
  encoding?: E;
  /** In bytes of each stream; default 1 MiB. */
  maxBuffer?: number;
  input?: string | Uint8Array;
}

export type ExecPromise<T> = Promise<{ stdout: T; stderr: T }> & { child: ChildProcess };

interface StreamEvents {
  gap: [gap: Gap];
}

interface ChildEvents extends StreamEvents {
  spawn: [];
  exit: [code: number | null, signal: NodeJS.Signals | null];
  close: [code: number | null, signal: NodeJS.Signals | null];
  error: [error: Error];
}

/** child_process.ChildProcess, with its parent elsewhere. */
export class ChildProcess extends EventEmitter {
  private constructor();
  readonly turn: Turn;
  /** From 'spawn' on; process.status says more than exitCode can. */
  readonly process: Process | null;
  /** From 'spawn' on. For people: never signal it. */
  readonly pid?: number;
  readonly stdin: InputStream | null;
  readonly stdout: OutputStream | null;
  readonly stderr: OutputStream | null;
  readonly stdio: readonly [InputStream | null, OutputStream | null, OutputStream | null];
  readonly exitCode: number | null;
  readonly signalCode: NodeJS.Signals | null;
  readonly killed: boolean;
  readonly connected: false;
  readonly spawnfile: string;
  readonly spawnargs: string[];
  kill(signal?: Signal): boolean;
  /** Makes a job of it: it outlives the turn, and its streams go on. */
  promote(options?: PromoteOptions): Promise<Job>;
  resize(rows: number, cols: number): Promise<{ rows: number; cols: number }>;
  ref(): this;
  unref(): this;
  on<E extends keyof ChildEvents>(event: E, listener: (...args: ChildEvents[E]) => void): this;
  once<E extends keyof ChildEvents>(event: E, listener: (...args: ChildEvents[E]) => void): this;
  off<E extends keyof ChildEvents>(event: E, listener: (...args: ChildEvents[E]) => void): this;
  [Symbol.dispose](): void;
}

/** A launched process, by its id. */
export class Process {
  private constructor();
  readonly turn: Turn;
  readonly id: string;
  readonly pid: number;
  readonly info: ProcessInfo;
  readonly status: Status;
  readonly running: boolean;
  refresh(): Promise<ProcessInfo>;
  wait(options?: { timeout?: number; signal?: AbortSignal }): Promise<Status>;
  signal(signal: Signal | string): Promise<Verdict>;
  /** Ends it with all that it has forked, or all but itself. The turn goes on. */
  end(options?: { grace?: number; descendantsOnly?: boolean; dryRun?: boolean }): Promise<EndedProcess>;
  promote(options?: PromoteOptions): Promise<Job>;
  /** At most 128 KiB at a time. */
  write(data: Uint8Array, options?: { close?: boolean; signal?: AbortSignal }): Promise<{ bytes: number; closed?: boolean }>;
  resize(rows: number, cols: number): Promise<{ rows: number; cols: number }>;
  acknowledge(): Promise<void>;
  read(options?: { stream?: StreamName; offset?: number; tail?: number; limit?: number }): Promise<{
    data: Buffer; offset: number; next: number; total: number; dropped: number;
  }>;
  follow(options?: { stream?: StreamName; offset?: number; drain?: number }): OutputStream;
}

/** Emits 'gap' for bytes that cannot be read any more; without a listener that is an error. */
export class OutputStream extends Readable {
  private constructor();
  readonly name: StreamName;
  /** Of the next byte that comes from the service. */
  readonly offset: number;
  readonly gapBytes: number;
  ref(): this;
  unref(): this;
}

/** A write is done when the process, or a buffer of bounded size, has taken it. */
export class InputStream extends Writable {
  private constructor();
}
