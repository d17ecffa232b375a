import { invalid } from './errors.mjs';
import { plan, signalName, usualSpool } from './plan.mjs';
import { ChildProcess } from './child.mjs';

const mostSpool = 1 << 30; // that the service takes

/** child_process.execFile, as a promise that has `child`. */
export function exec(turn, file, args, options) {
  if (args !== null && args !== undefined && !Array.isArray(args)) {
    [args, options] = [[], args];
  }
  const { encoding = 'utf8', maxBuffer = 1024 * 1024, input, ...rest } = options ?? {};
  if (typeof maxBuffer !== 'number' || !(maxBuffer >= 0)) {
    throw invalid(`The value of "options.maxBuffer" is out of range. It must be a positive number. Received ${maxBuffer}`, 'ERR_OUT_OF_RANGE', RangeError);
  }
  // All that may be read stays readable, however slowly this side is.
  const maxBytes = Math.min(Math.max(usualSpool, maxBuffer), mostSpool);
  const child = new ChildProcess(turn, plan(file, args, { maxBytes, drain: 1000, ...rest }));
  if (child.stdin) {
    child.stdin.on('error', () => {}); // a command need not read its input
    child.stdin.end(input);
  }
  const promise = collect(child, { encoding, maxBuffer, killSignal: signalName(rest.killSignal), cmd: [file, ...(args ?? [])].join(' ') });
  return Object.assign(promise, { child });
}

function collect(child, { encoding, maxBuffer, killSignal, cmd }) {
  return new Promise((resolve, reject) => {
    let failed = null;
    const give = (parts) => {
      const all = Buffer.concat(parts);
      return encoding && encoding !== 'buffer' ? all.toString(encoding) : all;
    };
    const gather = (stream, name) => {
      const parts = [];
      let room = maxBuffer;
      stream?.on('error', (e) => { failed ??= e; });
      stream?.on('data', (b) => {
        parts.push(b.length > room ? b.subarray(0, room) : b);
        room -= b.length;
        if (room >= 0) return;
        failed ??= invalid(`${name} maxBuffer length exceeded`, 'ERR_CHILD_PROCESS_STDIO_MAXBUFFER', RangeError);
        child.stdout?.destroy();
        child.stderr?.destroy();
        child.kill(killSignal);
      });
      return parts;
    };
    const out = gather(child.stdout, 'stdout');
    const err = gather(child.stderr, 'stderr');
    child.on('error', (e) => { failed ??= e; });
    child.on('close', (code, signal) => {
      const [stdout, stderr] = [give(out), give(err)];
      if (failed === null && code === 0) {
        resolve({ stdout, stderr });
        return;
      }
      failed ??= Object.assign(new Error(`Command failed: ${cmd}\n${stderr}`), { code, killed: child.killed, signal });
      reject(Object.assign(failed, { cmd, stdout, stderr }));
    });
  });
}
