// What the tests share. The service, and a socket that ends it and starts it
// again, are those of the Go test that runs this; see ../node_test.go.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, it as test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '../pinfold.mjs';

// By hand it would be the service of this host, with the turns of others.
assert.ok(process.env.PINFOLD_TEST_CONTROL, 'these tests need a service of their own: go test ./clients/node');
export const client = new Client();

const cleanups = [];
after(async () => {
  for (const f of cleanups.reverse()) await f();
  client.close();
});

/** A test that does not hang. */
export function it(name, f) {
  test(name, { timeout: 180_000 }, f);
}

/** A turn that is abandoned with the file's tests, when it was not ended. */
export async function begun(options) {
  const turn = await client.begin(options);
  cleanups.push(() => turn.abandon({ grace: 0, leftovers: true }));
  return turn;
}

/** A directory that is removed with the file's tests. */
export function tempDir() {
  const dir = mkdtempSync(join(tmpdir(), 'pinfold-node.'));
  cleanups.push(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** What there is to see of a child, once it is closed; an error is an event, too. */
export async function seen(child) {
  const events = [];
  const parts = { stdout: [], stderr: [] };
  let error = null;
  for (const name of ['spawn', 'exit', 'close', 'error']) {
    child.on(name, (...args) => {
      events.push(name);
      if (name === 'error') error = args[0];
    });
  }
  for (const name of ['stdout', 'stderr']) child[name]?.on('data', (b) => parts[name].push(b));
  const [code, signal] = await new Promise((r) => { child.once('close', (...a) => r(a)); });
  return { code, signal, events, error, stdout: Buffer.concat(parts.stdout), stderr: Buffer.concat(parts.stderr) };
}

/** Reads until a stream has said so much. */
export async function said(stream, what) {
  let text = '';
  const listen = (b) => { text += b; };
  stream.on('data', listen);
  try {
    await eventually(`${what} is said`, () => text.includes(what) || (stream.readableEnded && assert.fail(`only ${JSON.stringify(text)} was said`)));
  } finally {
    stream.off('data', listen);
  }
  return text;
}

/** Waits for a condition, a long time: machines can be slow. */
export async function eventually(what, cond, bound = 60_000) {
  for (const end = Date.now() + bound; ; await sleep(10)) {
    const v = await cond();
    if (v) return v;
    assert.ok(Date.now() < end, `not seen: ${what}`);
  }
}

/** Does what has to be done within a time; a busy machine gets a longer one. */
export async function patiently(f, ...times) {
  for (const time of times.slice(0, -1)) {
    try {
      return await f(time);
    } catch (e) {
      console.error(`within ${time} ms: ${e.message}`);
    }
  }
  return f(times.at(-1));
}

/** Whether a process is there and no zombie. */
export function exists(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return !'ZX'.includes(stat.slice(stat.lastIndexOf(')') + 2)[0]);
  } catch (e) {
    assert.ok(e.code === 'ENOENT' || e.code === 'ESRCH', e);
    return false;
  }
}

/** kill (SIGKILL), stop (SIGTERM) or start the service. */
export async function service(what) {
  const req = http.request({ socketPath: process.env.PINFOLD_TEST_CONTROL, method: 'POST', path: `/${what}`, agent: false }).end();
  const [res] = await once(req, 'response');
  let text = '';
  for await (const b of res) text += b;
  assert.equal(res.statusCode, 200, text);
}

export { sleep };
