// BullMQ as a peer: `node peer.mjs serve` is its worker, `node peer.mjs submit` its client, which takes
// one JSON order per line on stdin and answers each with a line on stdout. bullmq_peer.py speaks to it.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";

const NAME = "noop";
const MARK = "@"; // as in stamps.py
const connection = new IORedis(process.env.PEER_URL, { maxRetriesPerRequest: null });

function now() {
  return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n;
}

function stamp(payload) {
  if (!payload.startsWith(MARK)) return;
  appendFileSync(process.env.PEER_STAMPS, `${payload.slice(1).trim()} ${now()}\n`);
}

function serve() {
  const worker = new Worker(NAME, async (job) => stamp(job.data.payload), {
    connection,
    concurrency: 100,
  });
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

async function each(queue, payloads, callers) {
  const waiting = payloads.values();
  const caller = async () => {
    for (const payload of waiting) await queue.add(NAME, { payload });
  };
  await Promise.all(Array.from({ length: callers }, caller));
}

async function left(queue) {
  const counts = await queue.getJobCounts("waiting", "active", "delayed");
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

async function logBytes() {
  const told = await connection.info("persistence");
  return Number(/aof_current_size:(\d+)/.exec(told)[1]);
}

const ORDERS = {
  many: (queue, { payloads }) =>
    queue.addBulk(payloads.map((payload) => ({ name: NAME, data: { payload } }))).then(() => 0),
  each: (queue, { payloads, callers }) => each(queue, payloads, callers).then(() => 0),
  one: (queue, { payload, delay }) => queue.add(NAME, { payload }, { delay }).then(() => 0),
  left,
  logBytes,
};

function submit() {
  const queue = new Queue(NAME, { connection });
  createInterface({ input: process.stdin }).on("line", async (line) => {
    const order = JSON.parse(line);
    const result = await ORDERS[order.what](queue, order);
    process.stdout.write(`${JSON.stringify({ number: order.number, result })}\n`);
  });
  process.stdin.on("end", () => process.exit(0));
}

({ serve, submit })[process.argv[2]]();
