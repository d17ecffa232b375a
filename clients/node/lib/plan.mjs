import { resolve } from 'node:path';
import { Stream } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';
import { constants } from 'node:os';
import { invalid } from './errors.mjs';

/**
 * What is kept of a stream. A process is not held up by a slow reader, as it is
 * by a pipe, so this is how far it may get ahead of one.
 */
export const usualSpool = 64 << 20;

const known = new Set(['cwd', 'env', 'envAdd', 'stdio', 'shell', 'uid', 'gid', 'user', 'group', 'groups', 'signal', 'timeout', 'killSignal', 'pty',
  'umask', 'rlimits', 'nice', 'oomScoreAdj', 'noNewPrivs', 'stopSignal', 'deadline', 'labels', 'minGrade', 'cwdPolicy', 'maxBytes',
  'idempotencyKey', 'drain', 'acknowledge',
  // Of child_process, without meaning here: each process has its own session.
  'detached', 'windowsHide', 'windowsVerbatimArguments']);

/** What spawn's arguments ask for; they are checked, and refused, as child_process does. */
export function plan(file, args, options) {
  if (args !== null && args !== undefined && !Array.isArray(args)) {
    if (typeof args !== 'object') throw badType('"args" argument', 'an array', args);
    [args, options] = [[], args];
  }
  if (options !== undefined && (options === null || typeof options !== 'object')) throw badType('"options" argument', 'an object', options);
  const o = options ?? {};
  for (const k of Object.keys(o)) {
    if (!known.has(k) && o[k] !== undefined) throw invalid(`The option '${k}' is not supported: Pinfold starts the process. Received ${inspect(o[k])}`);
  }
  const command = words(file, args ?? [], o.shell);
  const timeout = o.timeout ?? 0;
  if (!Number.isInteger(timeout) || timeout < 0) {
    throw invalid(`The value of "timeout" is out of range. It must be an unsigned integer. Received ${inspect(timeout)}`, 'ERR_OUT_OF_RANGE', RangeError);
  }
  if (o.signal !== undefined && (o.signal === null || typeof o.signal !== 'object' || !('aborted' in o.signal))) {
    throw badType('"options.signal" property', 'an AbortSignal', o.signal);
  }
  const stdio = streams(o.stdio, o.pty);
  return {
    file: command[0], args: command, stdio, request: request(command, o, stdio),
    timeout, killSignal: signalName(o.killSignal ?? 'SIGTERM'), signal: o.signal,
    drain: o.drain, acknowledge: o.acknowledge ?? true,
  };
}

/** A signal's name; throws for one that there is not. */
export function signalName(sig) {
  if (sig === undefined || sig === null) return 'SIGTERM';
  for (const [name, number] of Object.entries(constants.signals)) {
    if (sig === number || (typeof sig === 'string' && sig.toUpperCase() === name)) return name;
  }
  throw invalid(`Unknown signal: ${sig}`, 'ERR_UNKNOWN_SIGNAL');
}

function words(file, args, shell) {
  text(file, 'argument', 'file');
  if (file === '') throw invalid("The argument 'file' cannot be empty. Received ''");
  const said = args.map(String);
  said.forEach((a, i) => text(a, 'argument', `args[${i}]`));
  if (!shell) return [file, ...said];
  if (shell !== true) text(shell, 'property', 'options.shell');
  return [shell === true ? '/bin/sh' : shell, '-c', [file, ...said].join(' ')];
}

function request(argv, o, stdio) {
  const stream = (s, i) => ({
    ignore: { mode: 'null' }, pty: { mode: 'pty', max_bytes: o.maxBytes }, stdout: { mode: 'stdout' },
  }[s] ?? (i === 0 ? { mode: 'pipe' } : { mode: 'spool', max_bytes: o.maxBytes ?? usualSpool }));
  const [stdin, stdout, stderr] = stdio.map(stream);
  const r = {
    argv, env: pairs(o.env ?? process.env, 'env'), cwd: directory(o.cwd), cwd_policy: o.cwdPolicy,
    env_add: o.envAdd && pairs(o.envAdd, 'envAdd', true),
    umask: octal(o.umask ?? process.umask()),
    stdio: { stdin, stdout, stderr, pty: stdio.includes('pty') ? size(o.pty) : undefined },
    user: name(o.user ?? o.uid), group: name(o.group ?? o.gid), groups: o.groups?.map(String),
    rlimits: o.rlimits, nice: o.nice, oom_score_adj: o.oomScoreAdj, no_new_privs: o.noNewPrivs,
    stop_signal: o.stopSignal, deadline_ms: o.deadline, labels: o.labels, min_grade: o.minGrade, idempotency_key: o.idempotencyKey,
  };
  for (const k of Object.keys(r)) { // so that they do not hide the defaults
    if (r[k] === undefined) delete r[k];
  }
  return r;
}

/** The service's own needs no words, nor a keeper that knows them. */
function octal(umask) {
  return umask === 0o022 ? undefined : umask.toString(8).padStart(4, '0');
}

function name(v) {
  return v === undefined || v === null ? undefined : String(v);
}

/** The size of a terminal, or what ours has. */
function size(pty) {
  return { rows: pty?.rows ?? process.stdout.rows ?? 24, cols: pty?.cols ?? process.stdout.columns ?? 80 };
}

function directory(cwd) {
  if (cwd === undefined || cwd === null) return process.cwd();
  if (Buffer.isBuffer(cwd)) cwd = cwd.toString();
  const path = cwd instanceof URL ? fileURLToPath(cwd) : cwd;
  text(path, 'property', 'options.cwd');
  return resolve(path);
}

function pairs(env, what, removes = false) {
  const list = [];
  for (const k in env) { // inherited ones too, as child_process does
    if (env[k] === undefined) continue;
    const pair = env[k] === null && removes ? k : `${k}=${env[k]}`;
    text(pair, 'property', `options.${what}['${k}']`);
    list.push(pair);
  }
  return list;
}

/** Per stream: pipe, ignore, inherit, pty, stdout (for stderr), or a stream to copy. */
function streams(stdio, pty) {
  if (stdio === undefined || stdio === null) stdio = pty ? 'pty' : 'pipe';
  if (typeof stdio === 'string') {
    if (!['pipe', 'overlapped', 'ignore', 'inherit', 'pty'].includes(stdio)) throw invalid(`The argument 'stdio' is invalid. Received ${inspect(stdio)}`);
    stdio = [stdio, stdio, stdio];
  }
  if (!Array.isArray(stdio)) throw invalid(`The argument 'stdio' is invalid. Received ${inspect(stdio)}`);
  stdio.slice(3).forEach((s, i) => {
    if (s !== 'ignore' && s !== null && s !== undefined) throw invalid(`The argument 'stdio[${i + 3}]' must be 'ignore': Node cannot send descriptors to a service. Received ${inspect(s)}`);
  });
  return [0, 1, 2].map((i) => one(stdio[i] ?? (pty ? 'pty' : 'pipe'), i));
}

function one(s, i) {
  const ours = [process.stdin, process.stdout, process.stderr];
  if (s === 'overlapped') return 'pipe';
  if (s === 'inherit') return ours[i];
  if (['pipe', 'ignore', 'pty'].includes(s) || (s === 'stdout' && i === 2)) return s;
  if (i === 0 ? s === 0 : s === 1 || s === 2) return ours[s];
  if (s instanceof Stream && typeof (i === 0 ? s.read : s.write) === 'function') return s;
  throw invalid(`The argument 'stdio[${i}]' is invalid: Node cannot send descriptors to a service, a stream is copied. Received ${inspect(s, { depth: 0 })}`);
}

function text(v, kind, what) {
  if (typeof v !== 'string') throw badType(`"${what}" ${kind}`, 'of type string', v);
  if (v.includes('\0')) throw invalid(`The ${kind} '${what}' must be a string without null bytes. Received ${inspect(v)}`);
}

function badType(what, want, got) {
  return invalid(`The ${what} must be ${want}. Received ${inspect(got, { depth: 0 })}`, 'ERR_INVALID_ARG_TYPE');
}
