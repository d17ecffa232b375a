// Clocks, clients, epochs, and what ends a turn.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe } from 'node:test';
import { begun, client, eventually, exists, it, patiently, service, sleep } from './helper.mjs';

const url = new URL('../pinfold.mjs', import.meta.url).href;

/** A client of its own; the id of the turn that it begins. */
async function program(code) {
  const c = spawn(process.execPath, ['--input-type=module', '-e', `import { Client } from ${JSON.stringify(url)}; const client = new Client();\n${code}`],
    { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = await once(c.stdout, 'data');
  return [c, await client.attach(line.toString().trim())];
}

async function endedBy(turn) {
  await turn.wait({ timeout: 60_000 });
  return (await client.receipt(turn.id)).reason;
}

describe('a process that ran before', () => {
  it('is adopted, and ends with the turn', async () => {
    const turn = await begun();
    const [child, canary] = [spawn('sh', ['-c', 'sleep 600 & echo; wait'], { stdio: ['ignore', 'pipe', 'inherit'] }), spawn('sleep', ['600'])];
    await once(child.stdout, 'data');
    const p = await turn.adopt(child.pid, { tree: true, labels: { k: 'v' } });
    assert.deepEqual([p.info.pid, p.info.adopted.moved, p.info.labels], [child.pid, 2, { k: 'v' }]);
    await assert.rejects(turn.adopt(child.pid), { code: 'adopt_refused', details: { reason: 'held', pid: String(child.pid), turn: turn.id } });
    const over = once(child, 'exit');
    assert.equal((await turn.abandon({ grace: 0 })).complete, true);
    assert.deepEqual(await over, [null, 'SIGKILL']);
    assert.equal(canary.exitCode ?? canary.signalCode, null);
    canary.kill('SIGKILL');
  });
});

describe('clocks', () => {
  it('are told and renewed', async () => {
    const turn = await begun({ wall: 3_600_000, lease: 600_000, idle: 300_000, idleBy: ['cpu', 'output'], leftoversMax: 60_000 });
    const clocks = Object.fromEntries((await turn.touch()).map((c) => [c.name, c.limit_ms]));
    assert.deepEqual(clocks, { wall: 3_600_000, lease: 600_000, idle: 300_000, leftovers: 60_000 });
    assert.deepEqual((await turn.why()).ends.map((e) => e.reason).filter((r) => ['wall', 'idle', 'lease_expired'].includes(r)).length, 3);
  });

  it('end it', async () => {
    for (const [reason, options] of Object.entries({ wall: { wall: 300 }, lease_expired: { lease: 300 }, idle: { idle: 300, idleBy: ['touch'] } })) {
      const turn = await begun(options);
      assert.equal(await endedBy(turn), reason);
      await assert.rejects(turn.touch(), { code: 'turn_over' });
    }
  });

  it('stand still while it is frozen', () => patiently(async (wall) => {
    const turn = await begun({ wall });
    await turn.freeze();
    assert.equal(turn.info.frozen, true);
    await sleep(wall + 500);
    assert.equal((await turn.refresh()).state, 'open');
    await turn.thaw();
    assert.equal(await endedBy(turn), 'wall');
  }, 1500, 15_000));
});

describe('clients', () => {
  it('a process', async () => {
    const [c, turn] = await program(`
      const turn = await client.begin({ bind: 'process', window: 200 });
      await turn.launch({ argv: ['sleep', '600'] });
      console.log(turn.id);
      setInterval(() => {}, 1000);`);
    assert.equal((await turn.refresh()).state, 'open');
    c.kill('SIGKILL');
    assert.equal(await endedBy(turn), 'client_gone');
  });

  it('a connection', () => patiently(async (window) => {
    const turn = await begun({ bind: 'connection', window });
    const hold = await turn.hold();
    hold.over.catch(() => {}); // also where we do not come to it
    await sleep(window + 1000);
    assert.equal((await turn.refresh()).state, 'open');
    hold.close();
    await assert.rejects(hold.over, { code: 'unavailable' });
    assert.equal(await endedBy(turn), 'client_gone');
    await assert.rejects(turn.hold(), { code: 'turn_over' });
  }, 500, 10_000));

  it('a connection of one that is killed', () => patiently(async (window) => {
    const [c, turn] = await program(`
      const turn = await client.begin({ bind: 'connection', window: ${window} });
      await turn.hold();
      console.log(turn.id);`);
    await sleep(window + 700);
    assert.equal((await turn.refresh()).state, 'open');
    c.kill('SIGKILL');
    assert.equal(await endedBy(turn), 'client_gone');
  }, 300, 10_000));

  it('a hold goes on over restarts, and tells the end', () => patiently(async (window) => {
    const turn = await begun({ bind: 'connection', window });
    const hold = await turn.hold();
    hold.over.catch(() => {}); // also where we do not come to it
    for (const how of ['kill', 'stop']) {
      await service(how);
      await service('start');
      await sleep(window + 1000);
      assert.equal((await turn.refresh()).state, 'open');
    }
    await service('kill');
    const end = turn.abandon({ grace: 0 });
    await sleep(100);
    await service('start');
    assert.deepEqual([await hold.over, (await end).state], ['abandoned', 'abandoned']);
  }, 2000, 15_000));

  it('who takes it refuses the other', async () => {
    const old = await client.begin({ bind: 'connection', window: 60_000 });
    const p = await old.launch({ argv: ['sleep', '600'], stdio: { stdin: { mode: 'pipe' } } });
    const hold = await old.hold();
    const taken = await (await client.attach(old.id)).take({ epoch: 1 });
    assert.deepEqual([taken.epoch, old.epoch], [2, 1]);
    await assert.rejects(hold.over, { code: 'stale_epoch' });
    const asks = [() => old.launch({ argv: ['true'] }), () => old.touch(), () => old.freeze(), () => old.thaw(), () => old.abandon(), () => old.finish(),
      () => old.hold(), () => p.promote(), () => p.end(), () => p.signal('KILL'), () => p.write(Buffer.from('x')), () => old.exec('true')];
    for (const ask of asks) await assert.rejects(ask(), { code: 'stale_epoch' }, String(ask));
    assert.deepEqual([exists(p.pid), (await taken.processes()).length], [true, 1]);
    await taken.abandon({ grace: 0 });
  });
});

describe('begin', () => {
  it('supersedes', async () => {
    const [old, other] = [await begun({ session: 's1' }), await begun({ session: 's2' })];
    const p = await old.launch({ argv: ['sh', '-c', "trap '' TERM; setsid sleep 600 & sleep 600"] });
    await begun({ session: 's1', supersede: true });
    assert.deepEqual([await endedBy(old), (await other.refresh()).state, exists(p.pid)], ['superseded', 'open', false]);
  });

  it('once for a key, and while the service is away', async () => {
    const a = await begun({ session: 'k', idempotencyKey: 'key' });
    const b = await begun({ session: 'k', idempotencyKey: 'key' });
    assert.deepEqual([a.id, b.info.repeated], [b.id, true]);
    await assert.rejects(begun({ session: 'l', idempotencyKey: 'key' }), { code: 'idempotency_conflict' });
    await service('kill');
    const late = begun({ session: 'away' });
    await sleep(100);
    await service('start');
    await late;
    assert.equal((await client.turns({ session: 'away' })).length, 1);
  });

  it('with a policy of its own', async () => {
    assert.deepEqual((await client.policy()).finished, { processes: 'keep', jobs: 'keep' });
    const turn = await begun({ policy: { idle: { processes: 'keep' } }, leftoversMax: 1000 });
    const p = await turn.launch({ argv: ['sleep', '600'] });
    assert.deepEqual((await turn.abandon({ reason: 'idle' })).leftovers.map((l) => l.pid), [p.pid]);
    await eventually('the leftover has had its time', () => !exists(p.pid));
  });
});

describe('events', () => {
  it('of a turn, over a restart, acknowledged once', async () => {
    const turn = await begun();
    const told = turn.events({ after: -1, kinds: ['exit'], follow: true });
    const got = (async () => {
      const all = [];
      for await (const e of told) {
        all.push(e);
        if (all.length === 2) return all;
      }
      return all;
    })();
    await eventually('it has begun', () => told.after !== -1);
    await (await turn.launch({ argv: ['true'] })).wait();
    await service('kill');
    await service('start');
    const second = await turn.launch({ argv: ['false'] }); // asked again until the keeper has answered, which may cost numbers
    await second.wait();
    const all = await got;
    assert.deepEqual(all.map((e) => [e.process, e.status.code, e.stopped ?? false]), [['p1', 0, false], [second.id, 1, false]]);
    assert.equal(await client.acknowledge('c', all[0].seq), true);
    assert.equal(await client.acknowledge('c', all[0].seq), false);
    const rest = [];
    for await (const e of client.events({ consumer: 'c', turn: turn.id, kinds: ['exit'] })) rest.push(e.process);
    assert.deepEqual(rest, [second.id]);
    await assert.rejects(client.acknowledge('not a name', 1), { code: 'bad_request' });
  });

  it('a reader that is aborted ends', async () => {
    const stop = new AbortController();
    const reading = (async () => {
      for await (const e of client.events({ after: -1, follow: true, signal: stop.signal })) assert.ok(e);
    })();
    await sleep(200);
    stop.abort();
    await assert.rejects(reading);
  });
});
