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
  ended_by?: string;
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
  close(): void;
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
  abandon(options?: { reason?: Reason; grace?: number; leftovers?: boolean }): Promise<Receipt>;
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
