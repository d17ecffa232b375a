import { unanswered } from './errors.mjs';

/** The lines of JSON of an answer. Leaving the loop closes its connection. */
export async function* lines(res, socket) {
  let rest = '';
  res.setEncoding('utf8');
  try {
    for await (const text of res) {
      const all = (rest + text).split('\n');
      rest = all.pop();
      for (const line of all) {
        if (line) yield JSON.parse(line);
      }
    }
    if (!res.complete) throw new Error('the answer was cut off');
  } catch (e) {
    throw e.code === 'ABORT_ERR' || e instanceof SyntaxError ? e : unanswered(e, socket);
  } finally {
    res.destroy();
  }
}
