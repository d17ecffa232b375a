// What a turn has and child_process has not.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe } from 'node:test';
import { Writable } from 'node:stream';
import { Client, PinfoldError } from '../pinfold.mjs';
import { begun, client, eventually, exists, it, said, seen, sleep, tempDir } from './helper.mjs';

describe('turns', () => {
  it('finish, and its receipt', async () => {
    const turn = await client.begin({ label: 'one', labels: { chat: '7' }, session: 's1', leftovers: 'reap' });
    assert.deepEqual([turn.info.state, turn.info.labels, turn.info.session], ['open', { chat: '7' }, 's1']);
    const left = turn.spawn('sleep', ['600'], { stdio: 'ignore' });
    const end = seen(left);
    await once(left, 'spawn');
    assert.deepEqual((await turn.processes()).map((p) => [p.id, p.info.argv]), [['p1', ['sleep', '600']]]);
    assert.deepEqual((await turn.tree()).filter((m) => m.process === 'p1').map((m) => m.pid), [left.pid]);
    const receipt = await turn.finish();
    assert.deepEqual([receipt.state, receipt.complete, receipt.turn], ['finished', true, turn.id]);
    assert.equal((await end).signal, 'SIGKILL');
    assert.deepEqual(await client.receipt(turn.id), receipt);
    assert.equal(await turn.wait(), 'finished');
    assert.ok((await client.turns({ all: true, session: 's1' })).some((t) => t.id === turn.id));
  });

  it('abandon ends all of it, and nothing else', async () => {
    const canary = (await begun()).spawn('cat');
    await once(canary, 'spawn');
    const turn = await begun();
    const c = turn.spawn('sh', ['-c', 'setsid sleep 600 & echo $!; wait']);
    const end = seen(c);
    const pid = Number(await said(c.stdout, '\n'));
    assert.equal(exists(pid), true);
    const receipt = await turn.abandon({ reason: 'superseded' });
    assert.deepEqual([receipt.state, receipt.reason, receipt.complete], ['abandoned', 'superseded', true]);
    assert.deepEqual([exists(pid), (await end).signal], [false, 'SIGKILL']);
    assert.equal(exists(canary.pid), true);
    assert.deepEqual(await turn.abandon(), receipt);
    const late = await seen(turn.spawn('true'));
    assert.deepEqual([late.error.code, late.error instanceof PinfoldError, late.events], ['turn_over', true, ['error', 'close']]);
    canary.stdin.end();
    assert.equal((await seen(canary)).code, 0);
  });

  it('disposed without finish, it is abandoned', async () => {
    const turn = await client.begin();
    await turn[Symbol.asyncDispose]();
    assert.equal(turn.receipt.state, 'abandoned');
    const done = await client.begin();
    const receipt = await done.finish();
    await done[Symbol.asyncDispose]();
    assert.equal(done.receipt, receipt);
  });

  it('run finishes, or abandons when it throws', async () => {
    let turn;
    assert.equal(await client.run({}, async (t) => { turn = t; return (await t.exec('echo', ['x'])).stdout; }), 'x\n');
    assert.equal(turn.receipt.state, 'finished');
    await assert.rejects(client.run({}, (t) => { turn = t; throw new Error('mine'); }), /mine/);
    assert.equal(turn.receipt.state, 'abandoned');
  });

  it('a service that hangs is not asked for ever', async () => {
    const mute = join(tempDir(), 'mute');
    const server = createServer(() => {}).listen(mute);
    await once(server, 'listening');
    const told = new Client({ socket: mute, timeout: 1100, patience: 200 }).host().then(() => null, (e) => e.message);
    assert.match(await Promise.race([told, sleep(60_000, 'asks for ever', { ref: false })]), /no answer within 1100 ms/);
    server.close();
  });

  it('errors say what, and what to do', async () => {
    await assert.rejects(client.attach('nonesuch'), (e) => e instanceof PinfoldError && e.code === 'not_found' && e.status === 404);
    await assert.rejects(client.attach('../x'), { code: 'bad_request' });
    await assert.rejects(client.begin({ lable: 'x' }), { code: 'bad_request' });
    await assert.rejects(new Client({ socket: '/nonesuch/sock', patience: 0 }).host(), (e) => e.code === 'unavailable' && /pinfold serve/.test(e.message));
    const turn = await begun();
    await assert.rejects((await turn.launch({ argv: ['sleep', '600'] })).wait({ timeout: 50 }), { code: 'timeout' });
    await assert.rejects(turn.process('p99'), { code: 'not_found' });
  });
});

describe('launches', () => {
  it('attributes', async () => {
    const turn = await begun();
    const script = 'umask; ulimit -n; ulimit -Hn; nice; cat /proc/self/oom_score_adj; grep NoNewPrivs /proc/self/status; pwd; echo $A $B; ls /proc/$$/fd; true';
    const { stdout } = await turn.exec('sh', ['-c', script], {
      umask: 0o077, rlimits: { nofile: { soft: 100, hard: 200 } }, nice: 3, oomScoreAdj: 17, noNewPrivs: true,
      cwd: '/usr/nonesuch/x', cwdPolicy: 'nearest', env: { PATH: process.env.PATH, A: '1' }, envAdd: { B: '2', A: null },
    });
    // At last the shell's descriptors: it has no others.
    assert.deepEqual(stdout.trim().split('\n'), ['0077', '100', '200', '3', '17', 'NoNewPrivs:\t1', '/usr', '2', '0', '1', '2']);
  });

  it('a user, with its groups', async () => {
    const turn = await begun();
    const { stdout } = await turn.exec('sh', ['-c', 'id -un; id -g'], { user: 'nobody' });
    assert.deepEqual(stdout.trim().split('\n'), ['nobody', '65534']);
  });

  it('a deadline', async () => {
    const turn = await begun({ grace: 0 });
    const c = turn.spawn('sleep', ['600'], { stdio: 'ignore', deadline: 200 });
    await seen(c);
    assert.deepEqual([c.process.status.ended_by, c.exitCode], ['deadline', null]);
  });

  it('one key launches once', async () => {
    const turn = await begun();
    const [a, b] = await Promise.all([1, 2].map(() => turn.launch({ argv: ['sleep', '600'], idempotency_key: 'k' })));
    assert.equal(a.id, b.id);
    await assert.rejects(turn.launch({ argv: ['true'], idempotency_key: 'k' }), { code: 'idempotency_conflict' });
    assert.equal((await turn.processes()).length, 1);
  });

  it('options that cannot be had are refused', async () => {
    const turn = await begun();
    for (const o of [{ argv0: 'x' }, { stdio: ['pipe', 'pipe', 'pipe', 'ipc'] }, { stdio: [7] }, { stdio: ['stdout'] }, { serialization: 'json' }]) {
      assert.throws(() => turn.spawn('true', [], o), { code: 'ERR_INVALID_ARG_VALUE' }, JSON.stringify(o));
    }
    assert.equal((await turn.processes()).length, 0);
  });

  it('aborted before, it is not launched', async () => {
    const turn = await begun();
    const s = await seen(turn.spawn('true', { signal: AbortSignal.abort() }));
    assert.deepEqual([s.events, (await turn.processes()).length], [['error', 'close'], 0]);
  });

  it('a listener that throws is an uncaught exception', async () => {
    const code = `
      import { Client } from ${JSON.stringify(new URL('../pinfold.mjs', import.meta.url).href)};
      process.on('unhandledRejection', () => console.log('rejection'));
      process.on('uncaughtException', (e) => console.log(e.message));
      await new Client().run({ leftovers: 'reap' }, async (turn) => {
        const c = turn.spawn('true');
        for (const e of ['spawn', 'exit', 'close']) c.on(e, () => { throw new Error(e); });
        await new Promise((r) => c.prependListener('close', r));
      });`;
    const s = await seen(spawn(process.execPath, ['--input-type=module', '-e', code]));
    assert.equal(s.stdout.toString(), 'spawn\nexit\nclose\n', s.stderr.toString());
  });
});

describe('streams', () => {
  it('stderr into stdout', async () => {
    const turn = await begun();
    const c = turn.spawn('sh', ['-c', 'echo 1; echo 2 >&2; echo 3'], { stdio: ['ignore', 'pipe', 'stdout'] });
    assert.equal(c.stderr, null);
    assert.equal((await seen(c)).stdout.toString(), '1\n2\n3\n');
  });

  it('a stream of ours is copied to', async () => {
    const turn = await begun();
    const parts = [];
    const to = new Writable({ write: (b, e, done) => { parts.push(b); done(); } });
    const c = turn.spawn('sh', ['-c', 'echo copied; echo err >&2'], { stdio: ['ignore', to, 'pipe'] });
    assert.equal(c.stdout, null);
    const s = await seen(c);
    assert.deepEqual([Buffer.concat(parts).toString(), s.stderr.toString(), to.writableEnded], ['copied\n', 'err\n', false]);
  });

  it('a gap is told', async () => {
    const turn = await begun();
    const c = turn.spawn('sh', ['-c', 'seq 100000; echo end'], { stdio: ['ignore', 'pipe', 'ignore'], maxBytes: 1 << 16, acknowledge: false });
    const gaps = [];
    c.on('gap', (g) => gaps.push(g));
    await once(c, 'exit'); // it is over before anybody reads
    const s = await seen(c);
    const whole = Array.from({ length: 100000 }, (_, i) => `${i + 1}\n`).join('') + 'end\n';
    assert.equal(gaps.length, 1);
    const [{ stream, from, to }] = gaps;
    assert.deepEqual([stream, s.stdout.toString()], ['stdout', whole.slice(0, from) + whole.slice(to)]);
    assert.equal(from, 1 << 14);
    const status = (await c.process.refresh()).output.stdout;
    assert.deepEqual([status.bytes_total, status.bytes_dropped], [whole.length, to - from]);
  });

  it('a gap that nobody listens for is an error', async () => {
    const turn = await begun();
    const gap = (o) => turn.spawn('sh', ['-c', 'seq 100000'], { maxBytes: 1 << 16, ...o });
    let c = gap();
    await once(c, 'exit');
    assert.equal((await seen(c)).error.code, 'gap');
    c = gap();
    const failed = once(c.stdout, 'error');
    await once(c, 'exit');
    const s = await seen(c);
    assert.deepEqual([(await failed)[0].code, s.error], ['gap', null]);
    await assert.rejects(turn.exec('sh', ['-c', 'seq 3000000; sleep 0.2'], { maxBuffer: 1 << 25, maxBytes: 1 << 12 }), { code: 'gap' });
  });

  it('read from an offset, the tail, and follow', async () => {
    const turn = await begun();
    const p = await turn.launch({ argv: ['sh', '-c', 'printf 0123456789; read x; printf "$x"'], stdio: { stdin: { mode: 'pipe' }, stdout: { mode: 'spool' } } });
    await eventually('it is written', async () => (await p.read()).total === 10);
    const { data, offset, next } = await p.read({ offset: 3, limit: 4 });
    assert.deepEqual([data.toString(), offset, next], ['3456', 3, 7]);
    assert.equal((await p.read({ tail: 2 })).data.toString(), '89');
    const readers = [p.follow(), p.follow({ offset: 8 })].map(async (s) => {
      let text = '';
      for await (const b of s) text += b;
      return text;
    });
    await p.write(Buffer.from('more\n'), { close: true });
    assert.deepEqual(await Promise.all(readers), ['0123456789more', '89more']);
    assert.equal((await p.wait()).state, 'exited');
    await p.acknowledge();
    await assert.rejects(p.read(), { code: 'not_found' });
  });

  it('what was read is acknowledged, unless it is not to be', async () => {
    const turn = await begun();
    const [a, b] = [turn.spawn('echo', ['a']), turn.spawn('echo', ['b'], { acknowledge: false })];
    await Promise.all([seen(a), seen(b)]);
    await eventually('it is acknowledged', async () => (await a.process.refresh()).acknowledged);
    assert.equal((await b.process.read()).data.toString(), 'b\n');
    assert.notEqual((await b.process.refresh()).acknowledged, true);
  });

  it('reopened from where it was', async () => {
    const turn = await begun();
    const first = turn.spawn('sh', ['-c', 'printf 12345; cat; exit 3']);
    const end = seen(first);
    await said(first.stdout, '12345');
    const again = await (await client.attach(turn.id)).reopen(first.process.id, { offsets: { stdout: 3 } });
    again.stdin.end('end');
    const s = await seen(again);
    assert.deepEqual([s.stdout.toString(), s.code, again.pid, s.events], ['45end', 3, first.pid, ['spawn', 'exit', 'close']]);
    assert.deepEqual([(await end).code, (await end).stdout.toString()], [3, '12345end']);
  });

  it('drain bounds how long a daemon holds the output', async () => {
    const turn = await begun();
    const c = turn.spawn('sh', ['-c', 'echo out; sleep 600 & exit 4'], { drain: 100 });
    const s = await seen(c);
    assert.deepEqual([s.stdout.toString(), s.code], ['out\n', 4]);
    assert.equal((await turn.exec('sh', ['-c', 'echo out; sleep 600 &'])).stdout, 'out\n');
    const kept = turn.spawn('sh', ['-c', 'sleep 600 & exit 5'], { stdio: ['ignore', 'pipe', 'ignore'] });
    let closed = false;
    kept.once('close', () => { closed = true; });
    await once(kept, 'exit');
    await sleep(300);
    assert.equal(closed, false);
    await turn.abandon({ grace: 0 });
    await eventually('it is closed with its turn', () => closed);
  });
});

describe('terminals', () => {
  it('a shell in one', async () => {
    const turn = await begun();
    const c = turn.spawn('bash', ['--norc', '-i'], { pty: { rows: 33, cols: 77 }, env: { PATH: process.env.PATH, PS1: '$ ', TERM: 'dumb' } });
    assert.equal(c.stderr, null);
    const end = seen(c);
    await said(c.stdout, '$ ');
    c.stdin.write('stty size; test -t 0 -a -t 1 -a -t 2 && echo is"a"tty\n');
    const text = await said(c.stdout, 'isatty\r\n');
    assert.match(text, /33 77/);
    assert.deepEqual(await c.resize(5, 9999), { rows: 5, cols: 4096 });
    c.stdin.write('stty size; echo d"o"ne\n');
    assert.match(await said(c.stdout, 'done\r\n'), /5 4096/);
    c.stdin.write(`sh -c 'echo start"ed"; exec sleep 600'; echo inter"rupted $?"\n`);
    await said(c.stdout, 'started\r\n'); // and has the terminal: before that, ^C is the shell's
    c.stdin.write('\x03');
    await said(c.stdout, '$ ');
    c.stdin.write('echo al"ive"\n');
    await said(c.stdout, 'alive\r\n');
    c.stdin.end(); // types the end of file
    const s = await end;
    assert.deepEqual([s.code, s.signal, s.error], [0, null, null]);
  });

  it('no loss of the last words', async () => {
    const turn = await begun();
    for (let i = 0; i < 30; i++) {
      assert.equal((await seen(turn.spawn('echo', [String(i)], { pty: { rows: 24, cols: 80 } }))).stdout.toString(), `${i}\r\n`);
    }
  });
});

describe('programs', () => {
  const url = new URL('../pinfold.mjs', import.meta.url).href;
  const program = (code, input) => {
    const c = spawn(process.execPath, ['--input-type=module', '-e',
      `import { Client } from ${JSON.stringify(url)}; const client = new Client(); const turn = await client.begin({ leftovers: 'reap' });\n${code}`]);
    c.stdin.on('error', () => {}); // it need not read it
    c.stdin.end(input);
    return seen(c);
  };

  it('inherited streams are copied', async () => {
    const s = await program(`
      const c = turn.spawn('sh', ['-c', 'tr a-z A-Z; echo err >&2; exit 3'], { stdio: 'inherit' });
      console.error([c.stdin, c.stdout, c.stderr].join());
      c.on('close', async (code) => { await turn.finish(); process.exitCode = code; });`, 'shout\n');
    assert.deepEqual([s.stdout.toString(), s.stderr.toString(), s.code], ['SHOUT\n', ',,\nerr\n', 3]);
  });

  it('our input that it does not read holds nobody up', async () => {
    const s = await program("turn.spawn('true', { stdio: 'inherit' }).on('close', () => turn.finish());", 'x'.repeat(1 << 20));
    assert.deepEqual([s.code, s.stderr.toString()], [0, '']);
  });

  it('one that is not referred to does not keep us', async () => {
    const s = await program(`
      console.log(turn.id);
      const c = turn.spawn('sleep', ['600'], { stdio: 'ignore' });
      c.on('spawn', () => c.unref());`);
    const turn = await client.attach(s.stdout.toString().trim());
    assert.deepEqual([s.code, s.stderr.toString(), turn.info.alive], [0, '', 1]);
    await turn.abandon({ grace: 0 });
  });

  it('one that is keeps us until its end', async () => {
    const s = await program("turn.spawn('sh', ['-c', 'sleep 0.3; echo late']).on('close', () => turn.finish()).stdout.pipe(process.stdout);");
    assert.deepEqual([s.stdout.toString(), s.code], ['late\n', 0]);
  });
});

