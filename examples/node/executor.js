// An executor of jobmesh with nothing but the .proto files: it runs jobs, a worker does the rest.
//
//   jobmesh worker --attach --listen 127.0.0.1:7190        in one terminal
//   node executor.js [ADDRESS]                             in another; default: 127.0.0.1:7190
//   jobmesh submit node-shout --input '{"text": "hello"}' --wait
//
// It attaches to the worker, says which types it runs and how many attempts at once, and answers
// each attempt with how it ended. When the connection breaks it attaches again; what it had in
// hand then is run again by whoever is there. SIGTERM and SIGINT: it finishes, then leaves.
'use strict';

const { createHash } = require('node:crypto');
const { access, readFile } = require('node:fs/promises');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const ADDRESS = process.argv[2] || '127.0.0.1:7190';
const PROTOS = path.resolve(__dirname, '..', '..', 'proto');
const AT_ONCE = 4;
const INLINE_BYTES = 512 * 1024; // larger outputs are put where the worker says
const JSON_TYPE = 'application/json';

// --- the jobs: a handler gets its input and a context, and returns its output or throws

const handlers = {
  'node-shout': async ({ text }) => ({ text: `${text.toUpperCase()}!` }),

  /** Waits for a file and returns what is in it; so many seconds, if it is told to be patient. */
  'node-await-file': async ({ file, patience }, context) => {
    if (patience) context.extend(patience);
    while (!context.signal.aborted) {
      const there = await access(file).then(() => true, () => false);
      if (there) return { content: await readFile(file, 'utf8') };
      await sleep(50);
    }
    throw new Error('stopped');
  },

  /** Counts up in steps; a later attempt goes on where the last checkpoint was. */
  'node-count': async ({ to }, context) => {
    for (let n = context.checkpoint ?? 0; n < to; ) {
      n += 1;
      context.progress(n, to, `counted ${n}`);
      context.saveCheckpoint(n);
    }
    context.log(`counted to ${to}`);
    return to;
  },

  /** Gives back what it was given, of any size. */
  'node-copy': async (input) => input,

  'node-refuse': async () => {
    throw Object.assign(new TypeError('this can never work'), { permanent: true });
  },
};

// --- the conversation with the worker

const { WorkerService } = grpc.loadPackageDefinition(
  protoLoader.loadSync('jobmesh/v1/worker_service.proto', {
    includeDirs: [PROTOS, path.join(PROTOS, 'third_party')],
    enums: String,
    longs: Number,
    oneofs: true, // message.message names the field that is set
  }),
).jobmesh.v1;

const running = new Map(); // attempts in hand, by job and fence
let stream = null;
let leaving = false;

const keyOf = (one) => `${idOf(one.jobId)}/${one.dispatchNo}`;
const idOf = (bytes) =>
  Buffer.from(bytes).toString('hex').replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, '$1-$2-$3-$4-$5');
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const encode = (value) => Buffer.from(JSON.stringify(value));

/** One attempt, from its input to its report. Reports of a broken conversation go nowhere. */
async function run(attempt, talk) {
  const stopping = new AbortController();
  running.set(keyOf(attempt), stopping);
  const about = { jobId: attempt.jobId, dispatchNo: attempt.dispatchNo };
  const report = (what) => talk.destroyed || talk.write({ report: { ...about, ...what } });
  const context = {
    jobId: idOf(attempt.jobId),
    attempt: attempt.attempt,
    signal: stopping.signal,
    checkpoint: attempt.checkpoint?.data ? JSON.parse(attempt.checkpoint.data) : undefined,
    progress: (done, total, message) => report({ progress: { done, total, message } }),
    saveCheckpoint: (value) =>
      report({ checkpoint: { data: { data: encode(value), contentType: JSON_TYPE } } }),
    /** It may run for so many seconds from now, whatever its run timeout was. */
    extend: (seconds) => {
      const duration = { seconds: Math.floor(seconds), nanos: Math.floor((seconds % 1) * 1e9) };
      return talk.destroyed || talk.write({ extend: { ...about, duration } });
    },
    log: (text) => talk.destroyed || talk.write({ logs: { ...about, lines: [{ text }] } }),
  };
  print({ started: context.jobId, type: attempt.type, attempt: attempt.attempt });
  try {
    const output = await handlers[attempt.type](await inputOf(attempt), context);
    report({ succeeded: { output: await outputOf(output, attempt) } });
  } catch (error) {
    report({ failed: { failure: failureOf(error) } });
  } finally {
    running.delete(keyOf(attempt));
    if (leaving && running.size === 0) talk.end();
  }
}

/** The input, inline or fetched; JSON, as the Python client sends it. */
async function inputOf(attempt) {
  if (!attempt.inputUrl) return JSON.parse(attempt.input?.data?.toString() || 'null');
  const answer = await fetch(attempt.inputUrl);
  if (!answer.ok) throw new Error(`cannot read the input: ${answer.status}`);
  return answer.json();
}

/** The output, inline or put where the worker said. */
async function outputOf(value, attempt) {
  const data = encode(value ?? null);
  if (data.length <= INLINE_BYTES || !attempt.outputUrl) return { data, contentType: JSON_TYPE };
  const answer = await fetch(attempt.outputUrl, { method: 'PUT', body: data });
  if (!answer.ok) throw new Error(`cannot store the output: ${answer.status}`);
  const sha256 = createHash('sha256').update(data).digest();
  return { object: { key: 'output', sizeBytes: data.length, sha256 }, contentType: JSON_TYPE };
}

const failureOf = (error) => ({
  type: error.name ?? 'Error',
  message: String(error.message ?? error).slice(0, 2000),
  traceback: String(error.stack ?? '').slice(-4000),
  permanent: error.permanent === true,
});

/** Attaches once, until either side ends the conversation. */
function attach(client) {
  return new Promise((resolve) => {
    const talk = client.attach();
    stream = talk;
    talk.write({ hello: { types: Object.keys(handlers), name: `node ${process.pid}` } });
    talk.write({ credit: { credit: AT_ONCE } });
    talk.on('data', (message) => {
      if (message.attempt) run(message.attempt, talk);
      else if (message.cancel) {
        running.get(`${message.cancel.jobId}/${message.cancel.dispatchNo}`)?.abort();
      } else if (message.verdict && message.verdict.verdict !== 'VERDICT_COMMITTED') {
        print({ verdict: message.verdict.verdict, jobId: idOf(message.verdict.jobId) });
      } else if (message.drain) print({ draining: true });
    });
    talk.on('error', (error) => {
      for (const one of running.values()) one.abort(); // others run these by now
      resolve(error);
    });
    talk.on('end', () => {
      talk.end();
      resolve(null);
    });
  });
}

/** No more attempts; those in hand may finish. */
function leave() {
  leaving = true;
  stream?.write({ credit: { credit: 0 } });
  if (running.size === 0) stream?.end();
}

async function main() {
  process.on('SIGTERM', leave).on('SIGINT', leave);
  const client = new WorkerService(ADDRESS, grpc.credentials.createInsecure());
  while (!leaving) {
    const error = await attach(client);
    if (error && error.code !== grpc.status.UNAVAILABLE && error.code !== grpc.status.CANCELLED) {
      throw error;
    }
    if (!leaving) await sleep(500);
  }
  client.close();
}

main().catch((error) => {
  process.stderr.write(`error: ${error.message}\n`);
  process.exitCode = 1;
});
