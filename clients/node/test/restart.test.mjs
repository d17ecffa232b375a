// The service goes and comes back while its processes run.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe } from 'node:test';
import { Client } from '../pinfold.mjs';
import { begun, eventually, exists, it, said, seen, service, sleep, tempDir } from './helper.mjs';

const lines = (n) => Array.from({ length: n }, (_, i) => `${i + 1}\n`).join('');

/** Of long texts, where they differ. */
function same(got, want) {
  const at = got === want ? -1 : [...want].findIndex((c, i) => c !== got[i]);
  assert.deepEqual([got.length, at, got.slice(at, at + 20)], [want.length, -1, want.slice(at, at + 20)]);
}

for (const how of ['kill', 'stop']) {
  describe(`the service is ended by ${how}`, () => {
    it('output, exit code and stdin go on', async () => {
      const turn = await begun();
      const dir = tempDir();
      const script = `seq 20000; read x; echo "$x"; seq 20000; until [ -e ${dir}/go ]; do sleep 0.05; done; seq 20000 >&2; exit 7`;
      const c = turn.spawn('sh', ['-c', script]);
      const end = seen(c);
      await said(c.stdout, '\n20000\n');
      await service(how);
      assert.equal(exists(c.pid), true);
      const written = new Promise((r) => { c.stdin.write('from us\n', r); }); // while nobody listens
      await sleep(100);
      await service('start');
      assert.equal(await written ?? null, null);
      await service(how);
      writeFileSync(join(dir, 'go'), '');
      await eventually('it has ended', () => !exists(c.pid)); // while nobody listens
      await service('start');
      const s = await end;
      same(s.stdout.toString(), `${lines(20000)}from us\n${lines(20000)}`);
      same(s.stderr.toString(), lines(20000));
      assert.deepEqual([s.code, s.signal, s.error, s.events], [7, null, null, ['spawn', 'exit', 'close']]);
    });

    it('a terminal goes on', async () => {
      const turn = await begun();
      const c = turn.spawn('sh', ['-c', 'stty -echo; echo ready; while read x; do echo "got $x"; done'], { pty: { rows: 24, cols: 80 } });
      const end = seen(c);
      await said(c.stdout, 'ready\r\n');
      await service(how);
      await service('start');
      c.stdin.write('word\n');
      await said(c.stdout, 'got word\r\n');
      assert.deepEqual(await c.resize(10, 20), { rows: 10, cols: 20 });
      c.stdin.end();
      assert.equal((await end).code, 0);
    });

    it('a launch and a signal wait for it', async () => {
      const turn = await begun();
      const c = turn.spawn('sleep', ['600'], { stdio: 'ignore' });
      const end = seen(c);
      await once(c, 'spawn');
      await service(how);
      const late = turn.exec('echo', ['late']);
      c.kill('SIGINT');
      await sleep(100);
      assert.equal(exists(c.pid), true);
      await service('start');
      assert.equal((await late).stdout, 'late\n');
      assert.equal((await end).signal, 'SIGINT');
      assert.equal((await turn.processes()).length, 2);
    });
  });
}

describe('the service is killed', () => {
  it('launches under way happen once', async () => {
    const turn = await begun();
    const dir = tempDir();
    const all = [];
    for (let i = 0; i < 20; i++) {
      all.push(seen(turn.spawn('sh', ['-c', `echo x >>${dir}/${i}; echo ${i}`])));
      if (i === 10) await sleep(5);
    }
    await service('kill');
    await service('start');
    for (const [i, s] of (await Promise.all(all)).entries()) {
      assert.deepEqual([s.error, s.code, s.stdout.toString()], [null, 0, `${i}\n`]);
      assert.equal((await turn.exec('cat', [`${dir}/${i}`])).stdout, 'x\n');
    }
  });

  it('a write that was under way is an error, and no guess', async () => {
    const turn = await begun();
    const c = turn.spawn('sleep', ['600']);
    const end = seen(c);
    const failed = once(c.stdin, 'error');
    c.stdin.write(Buffer.alloc(1 << 20)); // more than a pipe holds
    await once(c, 'spawn');
    await sleep(300);
    await service('kill');
    assert.equal((await failed)[0].code, 'unavailable');
    await service('start');
    c.kill();
    assert.equal((await end).signal, 'SIGTERM');
  });

  it('patience ends', async () => {
    const turn = await new Client({ patience: 300 }).begin();
    const c = turn.spawn('sleep', ['600']);
    const end = seen(c);
    await once(c, 'spawn');
    await service('kill');
    const s = await end;
    assert.deepEqual([s.error.code, s.code, s.signal, s.events], ['unavailable', null, null, ['spawn', 'error', 'close']]);
    assert.equal(exists(c.pid), true);
    await service('start');
    await turn.abandon({ grace: 0 });
  });

  it('an exit that nobody saw is lost, and no number', async () => {
    const turn = await begun();
    const c = turn.spawn('sleep', ['600'], { stdio: 'ignore' });
    const end = seen(c);
    await once(c, 'spawn');
    await service('kill');
    // The keeper is ours, by the turn that we began; it ends before its child.
    process.kill(turn.info.keeper_pid, 'SIGKILL');
    await eventually('the keeper is gone', () => !existsSync(`/proc/${turn.info.keeper_pid}`));
    process.kill(c.pid, 'SIGKILL');
    await service('start');
    const s = await end;
    assert.deepEqual([s.error.code, s.code, s.signal, s.events], ['process_lost', null, null, ['spawn', 'error', 'close']]);
  });
});
