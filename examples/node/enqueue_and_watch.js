// A client of jobmesh with nothing but the .proto files: no generated code, no SDK.
//
//   node enqueue_and_watch.js [ADDRESS]        default: 127.0.0.1:7101
//
// It submits an echo job, watches it to its end, reads its output, and shows how a refused call
// names its reason and the bad fields. Prints one JSON object per line; exit code 0 if the job
// SUCCEEDED, else 1.
'use strict';

const path = require('node:path');
const { randomUUID } = require('node:crypto');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const ADDRESS = process.argv[2] || '127.0.0.1:7101';
const PROTOS = path.resolve(__dirname, '..', '..', 'proto');
const CALL_SECONDS = 10;
const WATCH_SECONDS = 120;
const TERMINAL = new Set(['SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED']);

const api = grpc.loadPackageDefinition(
  protoLoader.loadSync(['jobmesh/v1/enqueue_service.proto', 'google/rpc/error_details.proto'], {
    includeDirs: [PROTOS, path.join(PROTOS, 'third_party'), path.join(__dirname, 'proto')],
    enums: String,
    longs: String,
    oneofs: true, // response.message names the field that is set
  }),
);
const client = new api.jobmesh.v1.EnqueueService(ADDRESS, grpc.credentials.createInsecure());

const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const within = (seconds) => ({ deadline: Date.now() + seconds * 1000 });
const nameOf = (state) => state.replace('JOB_STATE_', '');

/** A unary call as a promise, with a deadline: no call should be without one. */
function call(method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, within(CALL_SECONDS), (error, response) =>
      error ? reject(error) : resolve(response),
    );
  });
}

/** Submits a job. The key makes a repeated call safe: same key, same job. */
async function enqueue(type, input) {
  const request = {
    job: {
      type,
      input: { data: Buffer.from(JSON.stringify(input)), contentType: 'application/json' },
      labels: { example: 'node' },
    },
    idempotencyKey: randomUUID(),
  };
  return (await call('enqueue', request)).job;
}

/** Follows a job to its end; resumes by the last token when the connection breaks. */
async function watch(jobId) {
  const until = Date.now() + WATCH_SECONDS * 1000;
  let token = '';
  let state = '';
  let version = 0;
  while (!TERMINAL.has(state) && Date.now() < until) {
    const stream = client.watchJobs({ jobIds: [jobId], resumeToken: token }, { deadline: until });
    try {
      for await (const response of stream) {
        token = response.resumeToken || token;
        const seen = response.snapshot ?? response.event; // else a heartbeat, or a drain
        if (!seen || Number(seen.version) <= version) continue;
        version = Number(seen.version);
        state = nameOf(seen.state);
        print({ jobId, version, state, attempt: seen.attempt ?? 0 });
      }
    } catch (error) {
      if (error.code !== grpc.status.UNAVAILABLE) throw error;
      await new Promise((resume) => setTimeout(resume, 200));
    }
  }
  return state;
}

/** The output of a job that succeeded, whatever its size. */
async function output(jobId) {
  const chunks = [];
  for await (const part of client.downloadOutput({ jobId }, within(CALL_SECONDS))) {
    if (part.chunk) chunks.push(part.chunk);
  }
  return JSON.parse(Buffer.concat(chunks).toString());
}

/** The rich part of an error: a google.rpc.Status in the trailer, with typed details inside. */
function explain(error) {
  const [trailer] = error.metadata?.get('grpc-status-details-bin') ?? [];
  const found = { code: grpc.status[error.code], message: error.details };
  if (!trailer) return found;
  for (const detail of api.google.rpc.Status.deserialize(trailer).details) {
    const name = detail.type_url.split('.').pop();
    const kind = api.google.rpc[name];
    if (kind) found[name] = kind.deserialize(detail.value);
  }
  return found;
}

/** Two calls that must fail, to show what an error says. */
async function showErrors() {
  for (const type of ['no-such-type', 'NOT A TYPE']) {
    try {
      await call('enqueue', { job: { type } });
      throw new Error(`the mesh took a job of type ${type}`);
    } catch (error) {
      if (error.code === undefined) throw error;
      print({ refused: type, error: explain(error) });
    }
  }
}

async function main() {
  const job = await enqueue('echo', { hello: 'from node' });
  const state = await watch(job.id);
  if (state === 'SUCCEEDED') print({ jobId: job.id, output: await output(job.id) });
  await showErrors();
  return state === 'SUCCEEDED' ? 0 : 1;
}

main()
  .then((code) => {
    process.exitCode = code;
  })
  .catch((error) => {
    process.stderr.write(`error: ${JSON.stringify(explain(error))}\n`);
    process.exitCode = 1;
  })
  .finally(() => client.close());
