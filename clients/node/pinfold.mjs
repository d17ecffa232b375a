// A client of Pinfold: run processes in turns that end with all of their
// processes. No dependencies, Node 18 or newer, Linux. README.md shows it.
export { Client, Turn, defaultSocket } from './lib/client.mjs';
export { Process } from './lib/process.mjs';
export { Job } from './lib/job.mjs';
export { Hold } from './lib/hold.mjs';
export { Events } from './lib/events.mjs';
export { ChildProcess } from './lib/child.mjs';
export { OutputStream } from './lib/output.mjs';
export { InputStream } from './lib/input.mjs';
export { PinfoldError } from './lib/errors.mjs';
