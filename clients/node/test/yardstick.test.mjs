// One body of tests for child_process and for a turn: what Node does is right.
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createWriteStream, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { before, describe } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { begun, eventually, exists, it, said, seen, sleep, tempDir } from './helper.mjs';

const mib = 1 << 20;
const node = (code, ...args) => [process.execPath, ['-e', code, ...args]];
const hash = (b) => createHash('sha256').update(b).digest('hex');

function cases(name, world) {
  describe(name, () => {
    let dir;
    let run;
    let exec;
    before(async () => {
      dir = tempDir();
      ({ spawn: run, exec } = await world());
    });
    ends((...a) => run(...a));
    pipes((...a) => run(...a), () => dir);
    whole((...a) => run(...a), () => dir);
    refusals((...a) => run(...a), () => dir);
    stops((...a) => run(...a));
    execs((...a) => exec(...a));
  });
}

function ends(run) {
  it('exit codes', async () => {
    for (const code of [0, 1, 2, 127, 128, 255]) {
      const c = run('sh', ['-c', `exit ${code}`]);
      const s = await seen(c);
      assert.deepEqual([s.code, s.signal, s.error, c.exitCode, c.signalCode, c.killed], [code, null, null, code, null, false]);
      assert.deepEqual(s.events, ['spawn', 'exit', 'close']);
    }
  });

  it('signals', async () => {
    for (const sig of ['SIGTERM', 'SIGKILL', 'SIGUSR1', 'SIGINT']) {
      const canary = run('cat');
      const c = run('sleep', ['600'], { stdio: 'ignore' });
      await Promise.all([once(c, 'spawn'), once(canary, 'spawn')]);
      assert.equal(c.kill(sig), true);
      assert.equal(c.killed, true);
      const s = await seen(c);
      assert.deepEqual([s.code, s.signal, c.exitCode, c.signalCode], [null, sig, null, sig]);
      assert.equal(exists(c.pid), false);
      assert.equal(exists(canary.pid), true);
      canary.stdin.end('alive');
      assert.equal((await seen(canary)).stdout.toString(), 'alive');
    }
  });

  it('a signal by number', async () => {
    const c = run('sleep', ['600'], { stdio: 'ignore' });
    c.kill(9);
    assert.equal((await seen(c)).signal, 'SIGKILL');
  });

  it('a signal of its own', async () => {
    const s = await seen(run('sh', ['-c', 'kill -SEGV $$']));
    assert.deepEqual([s.code, s.signal], [null, 'SIGSEGV']);
  });

  it('a signal that it handles', async () => {
    const c = run('sh', ['-c', 'trap "exit 7" USR2; echo ready; while :; do sleep 0.1; done']);
    await said(c.stdout, 'ready');
    c.kill('SIGUSR2');
    assert.equal((await seen(c)).code, 7);
  });

  it('killed before it runs', async () => {
    const c = run('sleep', ['600']);
    assert.equal(c.kill(), true);
    assert.equal((await seen(c)).signal, 'SIGTERM');
  });

  it('a signal after the end is nothing', async () => {
    const c = run('true');
    await seen(c);
    assert.equal(c.kill(), false);
    assert.equal(c.kill(0), false);
    assert.equal(c.killed, false);
  });

  it('its pid is real', async () => {
    const c = run('sh', ['-c', 'echo $$; cat']);
    assert.equal(Number(await said(c.stdout, '\n')), c.pid);
    assert.equal(exists(c.pid), true);
    c.stdin.end();
    await seen(c);
    assert.equal(exists(c.pid), false);
  });

  it('the exit is not held up by a pipe', async () => {
    const dir = tempDir();
    execFileSync('mkfifo', [join(dir, 'fifo')]);
    // The child of the shell holds its stdout until somebody writes to the fifo.
    const c = run('sh', ['-c', `{ read x; echo late $x; } <${dir}/fifo & exit 5`]);
    let closed = false;
    c.once('close', () => { closed = true; });
    const out = seen(c);
    assert.deepEqual(await once(c, 'exit'), [5, null]);
    await sleep(100);
    assert.equal(closed, false);
    writeFileSync(join(dir, 'fifo'), 'news\n');
    assert.equal((await out).stdout.toString(), 'late news\n');
  });

  it('closes when nobody reads', async () => {
    const c = run('sh', ['-c', 'echo out; echo err >&2']);
    assert.deepEqual(await once(c, 'close'), [0, null]);
  });

  it('many at once', async () => {
    const all = await Promise.all(Array.from({ length: 20 }, (_, i) => seen(run('sh', ['-c', `echo ${i}; exit ${i}`]))));
    all.forEach((s, i) => assert.deepEqual([s.code, s.stdout.toString()], [i, `${i}\n`]));
  });
}

function pipes(run, dir) {
  it('bytes stay bytes', async () => {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const c = run('sh', ['-c', 'cat; echo err >&2']);
    c.stdin.end(bytes);
    const s = await seen(c);
    assert.deepEqual([s.stdout, s.stderr.toString()], [bytes, 'err\n']);
  });

  it('much, both ways', async () => {
    const bytes = randomBytes(8 * mib);
    const c = run('cat');
    c.stdin.end(bytes);
    const s = await seen(c);
    assert.equal(s.stdout.length, bytes.length);
    assert.equal(hash(s.stdout), hash(bytes));
  });

  it('many small writes keep their order', async () => {
    const c = run('cat');
    let want = '';
    for (let i = 0; i < 5000; i++) {
      c.stdin.write(`${i}\n`);
      want += `${i}\n`;
    }
    c.stdin.end();
    assert.equal((await seen(c)).stdout.toString(), want);
  });

  it('a conversation', async () => {
    const c = run('sh', ['-c', 'while read x; do echo "got $x"; done']);
    for (let i = 0; i < 20; i++) {
      c.stdin.write(`line ${i}\n`);
      await said(c.stdout, `got line ${i}\n`);
    }
    c.stdin.end();
    assert.equal((await seen(c)).code, 0);
  });

  it('stdin ends, and is destroyed', async () => {
    for (const how of ['end', 'destroy']) {
      const c = run('cat');
      c.stdin[how]();
      assert.equal((await seen(c)).code, 0, how);
    }
  });

  it('what nobody reads is an error of the write', async () => {
    const c = run('sh', ['-c', 'exec <&-; echo closed; exec sleep 600']);
    const error = new Promise((r) => { c.stdin.once('error', r); });
    await said(c.stdout, 'closed');
    const told = new Promise((r) => { c.stdin.write('x'.repeat(mib), r); });
    for (const e of [await told, await error]) {
      assert.deepEqual([e.code, e.errno, e.syscall, e.message], ['EPIPE', -32, 'write', 'write EPIPE']);
    }
    c.kill('SIGKILL');
    await seen(c);
  });

  it('input to one that is gone', async () => {
    const c = run('true');
    c.stdin.on('error', () => {});
    c.stdin.write(Buffer.alloc(mib));
    const s = await seen(c);
    assert.deepEqual([s.code, s.error], [0, null]);
    await eventually('stdin is destroyed', () => c.stdin.destroyed);
  });

  it('back-pressure of one that does not read', async () => {
    const c = run('sleep', ['600']);
    let taken = 0;
    const piece = Buffer.alloc(1 << 16);
    for (let i = 0; i < 64; i++) c.stdin.write(piece, (e) => { taken += e ? 0 : piece.length; });
    assert.equal(c.stdin.write(piece), false);
    await once(c, 'spawn');
    await sleep(300);
    assert.ok(taken <= mib, `${taken} bytes were taken`);
    assert.equal(c.stdin.writableNeedDrain, true);
    c.stdin.on('error', () => {});
    c.kill();
    assert.equal((await seen(c)).signal, 'SIGTERM');
  });

  it('a slow reader gets all', async () => {
    const bytes = randomBytes(2 * mib);
    const file = join(dir(), 'slow');
    writeFileSync(file, bytes);
    const c = run('cat', [file]);
    const parts = [];
    for await (const b of c.stdout) {
      parts.push(b);
      if (parts.length % 8 === 0) await sleep(5);
    }
    assert.equal(hash(Buffer.concat(parts)), hash(bytes));
  });

  it('into a file, and text', async () => {
    const file = join(dir(), 'piped');
    const c = run('sh', ['-c', 'printf "€%.0s" $(seq 30000); printf ü >&2']);
    c.stderr.setEncoding('utf8');
    let text = '';
    c.stderr.on('data', (s) => { text += s; });
    const closed = once(c, 'close');
    await pipeline(c.stdout, createWriteStream(file));
    await closed;
    assert.equal(readFileSync(file, 'utf8'), '€'.repeat(30000));
    assert.equal(text, 'ü');
  });

  it('which streams there are', async () => {
    const code = "const fs = require('fs'); process.stdout.write([0, 2].map((n) => fs.readlinkSync('/proc/self/fd/' + n)).join(' '))";
    const c = run(...node(code), { stdio: ['ignore', 'pipe', 'ignore'] });
    assert.deepEqual([c.stdin, c.stderr, c.stdio[0], c.stdio[1] === c.stdout], [null, null, null, true]);
    assert.equal((await seen(c)).stdout.toString(), '/dev/null /dev/null');
    const none = run('true', { stdio: 'ignore' });
    assert.deepEqual([none.stdin, none.stdout, none.stderr], [null, null, null]);
    await seen(none);
  });
}

function whole(run, dir) {
  it('words as they are', async () => {
    const odd = ['', 'a b', '$HOME', '"\'\\', '*', 'ü€', '-n', 'line\nfeed'];
    const s = await seen(run(...node('console.log(JSON.stringify(process.argv.slice(1)))', '--', ...odd)));
    assert.deepEqual(JSON.parse(s.stdout), odd);
  });

  it('a shell', async () => {
    let c = run('echo $((1+1)) |', ['cat', '-'], { shell: true });
    assert.deepEqual([c.spawnfile, c.spawnargs], ['/bin/sh', ['/bin/sh', '-c', 'echo $((1+1)) | cat -']]);
    assert.equal((await seen(c)).stdout.toString(), '2\n');
    c = run('echo $0', { shell: '/bin/bash' });
    assert.equal((await seen(c)).stdout.toString(), '/bin/bash\n');
  });

  it('the environment, exact', async () => {
    const show = "const e = process.env; console.log(JSON.stringify(Object.keys(e).sort().map((k) => k + '=' + e[k])))";
    const env = { A: '1', B: 'x=y z', PATH: process.env.PATH, NONE: undefined, 'ü': 'ö' };
    const s = await seen(run(...node(show), { env }));
    assert.deepEqual(JSON.parse(s.stdout), ['A=1', 'B=x=y z', `PATH=${process.env.PATH}`, 'ü=ö']);
  });

  it('our environment without being asked', async () => {
    process.env.PINFOLD_NODE_TEST = 'ours';
    const s = await seen(run('sh', ['-c', 'echo $PINFOLD_NODE_TEST $HOME']));
    assert.equal(s.stdout.toString().trim(), `ours ${process.env.HOME ?? ''}`.trim());
  });

  it('the program is looked for in the PATH it is given', async () => {
    const bin = join(dir(), 'bin');
    mkdirSync(bin);
    writeFileSync(join(bin, 'pinfold-odd'), '#!/bin/sh\necho found\n', { mode: 0o755 });
    const s = await seen(run('pinfold-odd', { env: { PATH: `/nonesuch:${bin}` } }));
    assert.equal(s.stdout.toString(), 'found\n');
  });

  it('the directory', async () => {
    const pwd = async (cwd) => (await seen(run('pwd', ['-P'], { cwd }))).stdout.toString();
    assert.equal(await pwd(dir()), `${dir()}\n`);
    assert.equal(await pwd(pathToFileURL(dir())), `${dir()}\n`);
    assert.equal(await pwd(undefined), `${process.cwd()}\n`);
    assert.equal((await seen(run('./here.sh', { cwd: here(dir()) }))).stdout.toString(), 'here\n');
  });

  it('the umask', async () => {
    const before = process.umask(0o027);
    try {
      assert.equal((await seen(run('sh', ['-c', 'umask']))).stdout.toString(), '0027\n');
    } finally {
      process.umask(before);
    }
  });

  it('another user', async () => {
    const s = await seen(run('sh', ['-c', 'id -u; id -g'], { uid: 65534, gid: 65534 }));
    assert.deepEqual([s.stdout.toString(), s.stderr.toString(), s.code], ['65534\n65534\n', '', 0]);
  });
}

/** A script in a directory, by a relative path. */
function here(dir) {
  writeFileSync(join(dir, 'here.sh'), '#!/bin/sh\necho here\n', { mode: 0o755 });
  return dir;
}

function refusals(run, dir) {
  it('programs that cannot be executed', async () => {
    const plain = join(dir(), 'plain');
    writeFileSync(plain, 'x');
    const code = { ENOENT: -2, EACCES: -13 };
    for (const [file, name, options] of [
      ['nonesuch', 'ENOENT'], [plain, 'EACCES'], [dir(), 'EACCES'], ['true', 'ENOENT', { cwd: join(dir(), 'nonesuch') }],
    ]) {
      const c = run(file, ['a', 'b'], options);
      const s = await seen(c);
      assert.deepEqual({ message: s.error.message, ...s.error }, {
        message: `spawn ${file} ${name}`, errno: code[name], code: name, syscall: `spawn ${file}`, path: file, spawnargs: ['a', 'b'],
      });
      assert.ok(s.error instanceof Error);
      assert.deepEqual([s.events, s.code, s.signal, c.pid, c.exitCode], [['error', 'close'], code[name], null, undefined, code[name]]);
      assert.equal(c.kill(), false);
    }
  });

  it('arguments that are none', () => {
    const refused = (code, ...args) => assert.throws(() => run(...args), { code }, JSON.stringify(args));
    refused('ERR_INVALID_ARG_TYPE', 1);
    refused('ERR_INVALID_ARG_VALUE', '');
    refused('ERR_INVALID_ARG_VALUE', 'a\0b');
    refused('ERR_INVALID_ARG_VALUE', 'a', ['b\0c']);
    refused('ERR_INVALID_ARG_TYPE', 'a', 'b');
    refused('ERR_INVALID_ARG_TYPE', 'a', [], null);
    refused('ERR_INVALID_ARG_TYPE', 'a', [], { cwd: 3 });
    refused('ERR_INVALID_ARG_VALUE', 'a', [], { cwd: 'b\0c' });
    refused('ERR_INVALID_ARG_VALUE', 'a', [], { env: { A: 'b\0c' } });
    refused('ERR_INVALID_ARG_VALUE', 'a', [], { stdio: 'none' });
    refused('ERR_INVALID_ARG_VALUE', 'a', [], { stdio: 3 });
    refused('ERR_OUT_OF_RANGE', 'a', [], { timeout: -1 });
    refused('ERR_UNKNOWN_SIGNAL', 'a', [], { timeout: 1, killSignal: 'SIGNONE' });
    refused('ERR_INVALID_ARG_TYPE', 'a', [], { signal: {} });
  });

  it('a signal that is none', async () => {
    const c = run('cat');
    assert.throws(() => c.kill('SIGNONE'), { code: 'ERR_UNKNOWN_SIGNAL' });
    c.stdin.end();
    assert.equal((await seen(c)).code, 0);
  });
}

function stops(run) {
  it('a timeout', async () => {
    const c = run('sleep', ['600'], { timeout: 200, killSignal: 'SIGKILL' });
    const s = await seen(c);
    assert.deepEqual([s.code, s.signal, s.error, c.killed], [null, 'SIGKILL', null, true]);
    assert.equal((await seen(run('true', { timeout: 60_000 }))).signal, null);
  });

  it('an AbortSignal', async () => {
    const ac = new AbortController();
    const c = run('sleep', ['600'], { signal: ac.signal, killSignal: 'SIGINT' });
    await once(c, 'spawn');
    setTimeout(() => ac.abort(new Error('enough')), 50);
    const s = await seen(c);
    assert.deepEqual([s.error.name, s.error.code, s.error.cause.message, s.code, s.signal], ['AbortError', 'ABORT_ERR', 'enough', null, 'SIGINT']);
  });

  it('an AbortSignal that was aborted before', async () => {
    const s = await seen(run('sleep', ['600'], { signal: AbortSignal.abort() }));
    assert.deepEqual([s.error.code, s.events.at(-1)], ['ABORT_ERR', 'close']);
  });

  it('an AbortSignal after the end', async () => {
    const ac = new AbortController();
    const s = await seen(run('true', { signal: ac.signal }));
    ac.abort();
    assert.deepEqual([s.code, s.error], [0, null]);
  });
}

function execs(exec) {
  it('exec: what was said', async () => {
    assert.deepEqual(await exec('sh', ['-c', 'echo ü; echo err >&2']), { stdout: 'ü\n', stderr: 'err\n' });
    assert.deepEqual(await exec('echo', ['x'], { encoding: 'buffer' }), { stdout: Buffer.from('x\n'), stderr: Buffer.alloc(0) });
    assert.deepEqual(await exec('pwd', { cwd: '/' }), { stdout: '/\n', stderr: '' });
    const p = exec('echo', ['child']);
    assert.deepEqual(await once(p.child, 'exit'), [0, null]);
    assert.equal((await p).stdout, 'child\n');
  });

  const fails = async (...args) => {
    const e = await exec(...args).then(() => assert.fail('it succeeded'), (error) => error);
    return { message: e.message, ...e };
  };

  it('exec: failures', async () => {
    assert.deepEqual(await fails('sh', ['-c', 'echo out; echo err >&2; exit 3']), {
      message: 'Command failed: sh -c echo out; echo err >&2; exit 3\nerr\n',
      code: 3, killed: false, signal: null, cmd: 'sh -c echo out; echo err >&2; exit 3', stdout: 'out\n', stderr: 'err\n',
    });
    assert.deepEqual(await fails('sleep', ['600'], { timeout: 100 }), {
      message: 'Command failed: sleep 600\n', code: null, killed: true, signal: 'SIGTERM', cmd: 'sleep 600', stdout: '', stderr: '',
    });
    const e = await fails('nonesuch', ['x']);
    assert.deepEqual([e.code, e.path, e.stdout, e.cmd], ['ENOENT', 'nonesuch', '', 'nonesuch x']);
    const ac = new AbortController();
    setTimeout(() => ac.abort(), 100);
    assert.equal((await fails('sleep', ['600'], { signal: ac.signal })).code, 'ABORT_ERR');
  });

  it('exec: maxBuffer', async () => {
    const e = await fails('sh', ['-c', 'head -c 3000000 /dev/zero | tr "\\0" x; exec sleep 600']);
    assert.deepEqual([e.code, e.message, e.stdout.length], ['ERR_CHILD_PROCESS_STDIO_MAXBUFFER', 'stdout maxBuffer length exceeded', mib]);
    const short = await fails('sh', ['-c', 'printf 123456789 >&2; exec sleep 600'], { maxBuffer: 5 });
    assert.deepEqual([short.message, short.stderr], ['stderr maxBuffer length exceeded', '12345']);
    const { stdout } = await exec('head', ['-c', String(8 * mib), '/dev/zero'], { maxBuffer: 8 * mib, encoding: 'latin1' });
    assert.equal(stdout.length, 8 * mib);
  });
}

cases('child_process', () => ({ spawn, exec: promisify(execFile) }));
cases('a turn', async () => {
  const turn = await begun({ label: 'yardstick' });
  return { spawn: turn.spawn.bind(turn), exec: turn.exec.bind(turn) };
});
