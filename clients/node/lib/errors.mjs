import { constants } from 'node:os';

/**
 * What the service refused, or why it could not be asked. `code` is stable:
 * that of the API, or unavailable (nobody answers), process_lost (nobody saw
 * the exit status), gap (bytes of a stream are gone), bad_answer.
 */
export class PinfoldError extends Error {
  constructor(code, message, { remedy = '', details = {}, status = 0, grade, cause, sent = true } = {}) {
    super(remedy ? `${message} (${remedy})` : message, cause === undefined ? undefined : { cause });
    this.name = 'PinfoldError';
    this.code = code;
    this.remedy = remedy;
    this.details = details;
    this.status = status;
    this.grade = grade;
    // Not for users: whether the service may have seen the request.
    Object.defineProperty(this, 'sent', { value: sent });
  }

  /** The error that the API's JSON says. */
  static of({ code, message, remedy, details, grade }, status = 0) {
    return new PinfoldError(code, message, { remedy, details, status, grade });
  }
}

/** The error that an answer's body says. */
export function answered(status, body) {
  let e;
  try {
    e = JSON.parse(body);
  } catch { /* no JSON: told as it is */ }
  if (!e || typeof e.code !== 'string') {
    return new PinfoldError('bad_answer', `HTTP ${status}: ${String(body).slice(0, 200)}`, { status });
  }
  return PinfoldError.of(e, status);
}

/** Why there is no answer. */
export function unanswered(cause, socket) {
  const sent = cause.syscall !== 'connect';
  if (sent) {
    return new PinfoldError('unavailable', `the connection to ${socket} broke before the answer: ${cause.message}`, { cause, sent });
  }
  const remedy = cause.code === 'EACCES'
    ? 'ask an administrator for access to the socket, or run a service of your own with `pinfold serve`'
    : 'start it with `systemctl start pinfold` or `pinfold serve`, or name its socket with PINFOLD_SOCKET';
  return new PinfoldError('unavailable', `nobody answers at ${socket}: ${cause.code ?? cause.message}`, { cause, sent, remedy });
}

/** A system error as Node has them. */
export function systemError(code, syscall, more) {
  const e = new Error(`${syscall} ${code}`);
  return Object.assign(e, { errno: -(constants.errno[code] ?? 0), code, syscall }, more);
}

/** A failed launch as child_process tells it; the service's words are its cause. */
export function spawnError(e, file, args) {
  const code = e.details?.errno_name;
  const known = (e.code === 'exec_failed' || e.code === 'launch_refused') && code in constants.errno;
  const said = known ? systemError(code, `spawn ${file}`) : e;
  if (known) {
    Object.defineProperty(said, 'cause', { value: e, configurable: true, writable: true });
  }
  return Object.assign(said, { path: file, spawnargs: args });
}

/** What child_process says of an argument that is not one. */
export function invalid(message, code = 'ERR_INVALID_ARG_VALUE', Kind = TypeError) {
  const e = new Kind(message);
  e.code = code;
  return e;
}

/** The operation was aborted, as Node says it. */
export function aborted(cause) {
  const e = new Error('The operation was aborted', cause === undefined ? undefined : { cause });
  e.name = 'AbortError';
  e.code = 'ABORT_ERR';
  return e;
}
