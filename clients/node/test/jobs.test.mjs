// Jobs, and what is ended with what.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { join } from 'node:path';
import { after, describe } from 'node:test';
import { begun, client, eventually, exists, it, said, tempDir } from './helper.mjs';

const started = [];
after(async () => {
  for (const j of started) await j.stop({ grace: 0 });
});

/** A job that is stopped with the file's tests. */
function mine(job) {
  started.push(job);
  return job;
}

async function text(process) {
  let all = '';
  for await (const b of process.follow()) all += b;
  return all;
}

describe('jobs', () => {
  it('started', async () => {
    const cwd = tempDir();
    const job = mine(await client.startJob('sh', ['-c', 'echo $A; read x; echo got $x; exit 3'], {
      name: 'a name', session: 's', jobLabels: { k: 'v' }, max: 600_000, env: { A: '1' }, cwd, stdio: ['pipe', 'pipe', 'pipe'],
    }));
    assert.deepEqual([job.name, job.session, job.info.labels, job.info.origin, job.state], ['a name', 's', { k: 'v' }, 'started', 'running']);
    assert.deepEqual((await client.jobs({ cwd })).map((j) => j.id), [job.id]);
    await job.process.write(Buffer.from('it\n'), { close: true });
    assert.equal(await text(job.process), '1\ngot it\n');
    assert.deepEqual([(await job.wait()).code, job.state], [3, 'ended']);
    assert.deepEqual([(await client.jobs({ session: 's' })).length, (await client.jobs({ session: 's', all: true })).length], [0, 1]);
  });

  it('what cannot be one', async () => {
    await assert.rejects(client.startJob('/no/such/program'), { code: 'exec_failed' });
    await assert.rejects(client.startJob('true', { stdio: 'inherit' }), { code: 'bad_request' });
    await assert.rejects(client.job('nosuch-p1'), { code: 'not_found' });
    await assert.rejects(client.job('../turns'), { code: 'bad_request' });
  });

  it('its maximum', async () => {
    const job = mine(await client.startJob('sh', ['-c', "trap '' TERM; setsid sleep 600 & sleep 600"], { max: 500, grace: 0 }));
    assert.equal((await job.wait({ timeout: 60_000 })).signal, 'SIGKILL');
    assert.deepEqual([job.info.reason, job.info.alive], ['wall', 0]);
  });

  it('promoted, it loses nothing, and its child neither', async () => {
    const turn = await begun({ session: 'first' });
    const c = turn.spawn('sh', ['-c', 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done']);
    let out = '';
    c.stdout.on('data', (b) => { out += b; });
    await said(c.stdout, '\n20\n');
    const job = mine(await c.promote({ name: 'counts' }));
    assert.deepEqual([job.info.origin, job.session, (await turn.jobs()).map((j) => j.id)], ['promoted', 'first', [job.id]]);
    const receipt = await turn.abandon({ grace: 0 });
    assert.deepEqual([receipt.complete, receipt.jobs.map((j) => j.id), exists(c.pid)], [true, [job.id], true]);
    await said(c.stdout, '0\n');
    const closed = once(c, 'close');
    await job.stop({ grace: 0 });
    await closed;
    const numbers = out.trim().split('\n').map(Number);
    assert.deepEqual(numbers, numbers.map((_, i) => i + 1));
    assert.deepEqual([job.state, job.info.reason, c.signalCode], ['ended', 'stop', 'SIGKILL']);
  });

  it('a daemon is ejected', async () => {
    const turn = await begun();
    const path = join(tempDir(), 'sock');
    const server = `require('net').createServer(() => {}).listen(${JSON.stringify(path)}, () => console.log('up'))`;
    const c = turn.spawn('sh', ['-c', 'setsid "$0" -e "$1" & exec sleep 600', process.execPath, server]);
    await said(c.stdout, 'up');
    const socket = connect(path);
    await once(socket, 'connect');
    const [found] = await eventually('it is told to be used', async () => { const { servers } = await turn.why(); return servers.length > 0 && servers; });
    assert.deepEqual([found.socket, found.clients.map((m) => m.pid)], [`unix:${path}`, [process.pid]]);
    assert.deepEqual((await turn.plan()).servers.map((s) => s.pid), [found.pid]);
    const job = mine(await c.promote({ pid: found.pid, name: 'a daemon' }));
    await turn.abandon({ grace: 0 });
    assert.deepEqual([job.info.origin, (await job.refresh()).state, exists(found.pid), exists(c.pid)], ['ejected', 'running', true, false]);
    socket.destroy();
  });

  it('given', async () => {
    const job = mine(await client.startJob('sleep', ['600'], { session: 'one' }));
    const turn = await begun({ session: 'two' });
    await job.give({ turn });
    assert.deepEqual([job.session, (await turn.jobs()).map((j) => j.id), await client.jobs({ session: 'one' })], ['two', [job.id], []]);
    await turn.abandon({ grace: 0 });
    await job.give({ session: '' });
    assert.deepEqual([job.session, (await job.refresh()).state], ['', 'running']);
  });
});

describe('targets', () => {
  it('a process, or what it has forked', async () => {
    const turn = await begun();
    const p = await turn.launch({ argv: ['sh', '-c', 'setsid sleep 600 & sleep 600'] });
    const q = await turn.launch({ argv: ['sh', '-c', 'sleep 600; echo $?'], stdio: { stdout: { mode: 'spool' } } });
    await eventually('all of it runs', async () => (await turn.tree()).length === 5);
    const dry = await p.end({ dryRun: true });
    assert.deepEqual([dry.targets.length, exists(p.pid)], [3, true]);
    const done = await p.end({ grace: 20_000 });
    assert.deepEqual([done.complete, done.ended], [true, 3]);
    assert.equal((await q.end({ grace: 0, descendantsOnly: true })).complete, true);
    assert.equal(await text(q), '137\n');
  });

  it('many turns, and never all', async () => {
    const canary = await begun({ session: 'other', labels: { x: 'y' } });
    const [a, b, c] = [await begun({ session: 'many' }), await begun({ session: 'many' }), await begun({ labels: { x: 'z' } })];
    const plan = await client.abandon({ session: 'many', dryRun: true });
    assert.deepEqual([plan.plans.map((p) => p.turn).sort(), (await a.refresh()).state], [[a.id, b.id].sort(), 'open']);
    const done = await client.abandon({ session: 'many', reason: 'operator', grace: 0 });
    assert.deepEqual(done.receipts.map((r) => [r.turn, r.reason]).sort(), [[a.id, 'operator'], [b.id, 'operator']].sort());
    assert.deepEqual((await client.abandon({ labels: { x: 'z' }, grace: 0 })).receipts.map((r) => r.turn), [c.id]);
    assert.deepEqual((await client.abandon({ turns: ['nosuch'] })).refused.map((r) => [r.id, r.error.code]), [['nosuch', 'not_found']]);
    for (const o of [{}, { turns: [] }, { session: '' }, { labels: {} }, { session: 's', owner: 0 }, { session: '*' }, { turns: ['*'] }]) {
      await assert.rejects(client.abandon(o), { code: 'bad_request' }, JSON.stringify(o));
    }
    assert.equal((await canary.refresh()).state, 'open');
  });

  it('quiet', async () => {
    const dir = tempDir();
    assert.equal((await client.quiet(dir)).quiet, true);
    const turn = await begun();
    const p = await turn.launch({ argv: ['sleep', '600'], cwd: dir });
    const { quiet, uses } = await client.quiet(dir);
    assert.deepEqual([quiet, uses.map((u) => [u.turn, u.process, u.pid, u.how])], [false, [[turn.id, p.id, p.pid, 'cwd']]]);
    await p.end({ grace: 0 });
    assert.equal((await client.quiet(dir)).quiet, true);
    await assert.rejects(client.quiet(''), { code: 'bad_request' }); // which is not the current directory
  });
});
