"""Clients of other languages against both servers: Go (buf curl), Node (grpc-js), and HTTP/1."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1.job_pb2 import Job
from jobmesh.v1.payload_pb2 import Payload

from services.mesh.errors import JobNotFound
from services.mesh.rpc.tls import TlsFiles
from tests.integration.chassis_mesh import JOB_ID, Mesh, mesh
from tests.integration.http2_conformance_rig import for_both, holds_for, server_kind, serving
from tests.integration.test_chassis_tls import OPENSSL, issue
from tests.node import InstallError, node_with_packages

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"
BUF = Path(sys.executable).with_name("buf")
ENQUEUE = "jobmesh.v1.EnqueueService"
NAMED = {"namespace": "default", "jobId": JOB_ID}
WATCHED = {"namespace": "default", "jobIds": [JOB_ID]}
#: Larger than a window of flow control, so that every client has to give some back.
LARGE = b"l" * 300_000

needs_buf = pytest.mark.skipif(not BUF.exists(), reason="needs the program buf")


@asynccontextmanager
async def sample(kind: str, **options: Any) -> AsyncIterator[Mesh]:
    """A service with an answer for each kind of call."""
    async with mesh(kind=server_kind(kind), **options) as m:
        m.sample.on_get, m.sample.on_upload = get, upload
        m.sample.on_watch, m.sample.on_stream = watch, stream
        yield m


async def get(request: Any, context: Any) -> Any:
    if request.namespace == "missing":
        raise JobNotFound(request.job_id)
    if request.namespace == "hangs":
        await asyncio.Event().wait()
    sent = dict(context.invocation_metadata())
    named = str(sent.get("x-name", ""))
    return pb.GetJobResponse(
        job=Job(id=request.job_id, worker_id=named, output=Payload(data=LARGE))
    )


async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
    for number in range(5):
        yield pb.WatchJobsResponse(resume_token=f"{number}")
    if request.namespace == "missing":
        raise JobNotFound(JOB_ID)
    for _ in range(5):
        yield pb.WatchJobsResponse(resume_token=LARGE.decode())


async def upload(requests: Any, context: Any) -> Any:
    size = sum([len(request.chunk) async for request in requests])
    return pb.UploadInputResponse(payload=Payload(data=b"%d" % size))


async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield pb.EnqueueStreamResponse(first_item=len(request.items))


async def ran(*command: str, said: bytes = b"") -> tuple[int, str, str]:
    """Exit code, output and errors of a client."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=EXAMPLE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await process.communicate(said)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, out.decode(), errors.decode()


async def curl(url: str, *options: str, data: Any = None) -> tuple[int, str, str]:
    given = () if data is None else ("-d", json.dumps(data))
    plain = () if url.startswith("https") else ("--http2-prior-knowledge",)
    return await ran(str(BUF), "curl", "--protocol", "grpc", *plain, *given, *options, url)


def documents(text: str) -> list[Any]:
    """The JSON documents that were printed one after another."""
    found, at = [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = json.JSONDecoder().raw_decode(text, at)
        found.append(document)
    return found


# --- Go


def reason_in(details: list[dict[str, Any]]) -> str:
    (value,) = (each["value"] for each in details if each["type"] == "google.rpc.ErrorInfo")
    return str(ErrorInfo.FromString(base64.b64decode(value + "=" * (-len(value) % 4))).reason)


@needs_buf
@for_both
async def test_go_lists_services_and_methods_by_reflection(kind: str) -> None:
    async with sample(kind) as m:
        base = f"http://{m.server.address}"
        for option, wanted in (
            ("--list-services", ENQUEUE),
            ("--list-methods", f"{ENQUEUE}/GetJob"),
        ):
            code, out, errors = await curl(base, option)
            assert code == 0, errors
            assert wanted in out.splitlines()


@needs_buf
@for_both
async def test_go_makes_each_kind_of_call(kind: str) -> None:
    chunks = "".join(json.dumps({"chunk": "MTIzNDU="}) for _ in range(20)).encode()
    items = "".join(json.dumps({"items": [{}] * n}) for n in (1, 2, 3)).encode()
    async with sample(kind) as m:
        base = f"http://{m.server.address}/{ENQUEUE}"
        code, out, errors = await curl(f"{base}/GetJob", "-H", "x-name: gopher", data=NAMED)
        assert code == 0, errors
        assert documents(out)[0]["job"]["workerId"] == "gopher"
        code, out, errors = await curl(f"{base}/WatchJobs", data=WATCHED)
        assert code == 0, errors
        tokens = [document["resumeToken"] for document in documents(out)]
        assert tokens == [*"01234", *[LARGE.decode()] * 5]
        command = (str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", "@-")
        code, out, errors = await ran(*command, f"{base}/UploadInput", said=chunks)
        assert code == 0, errors
        assert documents(out)[0]["payload"]["data"] == "MTAw"
        code, out, errors = await ran(*command, f"{base}/EnqueueStream", said=items)
        assert code == 0, errors
        assert [document["firstItem"] for document in documents(out)] == [*"123"]


@needs_buf
@for_both
async def test_go_reads_error_details_of_calls_and_of_streams(kind: str) -> None:
    async with sample(kind) as m:
        base = f"http://{m.server.address}/{ENQUEUE}"
        for method, data in (("GetJob", NAMED), ("WatchJobs", WATCHED)):
            missing = {**data, "namespace": "missing"}
            code, out, errors = await curl(f"{base}/{method}", data=missing)
            # The code of gRPC, shifted by three bits.
            assert code == 5 << 3, errors
            (told,) = documents(errors)
            assert told["code"] == "not_found"
            assert reason_in(told["details"]) == "JOB_NOT_FOUND"
            assert out.count("resumeToken") == (5 if method == "WatchJobs" else 0)


@needs_buf
@for_both
async def test_go_hears_of_a_method_that_is_not_here(kind: str) -> None:
    async with sample(kind, reflection=False) as m:
        schema = ("--schema", str(ROOT / "proto"), "--reflect=false")
        url = f"http://{m.server.address}/jobmesh.v1.OrchestratorService/GetJobs"
        code, _, errors = await curl(url, *schema, data={})
        assert code == 12 << 3, errors


@needs_buf
@pytest.mark.skipif(not OPENSSL, reason="needs the program openssl")
@for_both
async def test_go_calls_over_tls_and_without_a_certificate_it_does_not(
    kind: str, tmp_path: Path
) -> None:
    server, client = issue(tmp_path, "server", "ours"), issue(tmp_path, "client", "ours")
    known = ("--cert", client.cert, "--key", client.key)
    async with sample(kind, tls=server) as m:
        url = f"https://{m.server.address}/{ENQUEUE}/GetJob"
        code, out, errors = await curl(url, "--cacert", str(server.ca), *known, data=NAMED)
        assert code == 0, errors
        assert documents(out)[0]["job"]["id"] == JOB_ID
        code, _, _ = await curl(url, "--cacert", str(server.ca), data=NAMED)
        assert code != 0
    async with sample(kind, tls=TlsFiles(server.cert, server.key)) as m:
        url = f"https://{m.server.address}/{ENQUEUE}/WatchJobs"
        code, out, errors = await curl(url, "--cacert", str(server.ca), data=WATCHED)
        assert code == 0, errors
        assert len(documents(out)) == 10


# --- Node

NODE = r"""
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const [address, protos] = process.argv.slice(2);
const api = grpc.loadPackageDefinition(
  loader.loadSync(['jobmesh/v1/enqueue_service.proto'], {
    includeDirs: [protos, path.join(protos, 'third_party'), path.join(process.cwd(), 'proto')],
    longs: Number,
  }),
);
const client = new api.jobmesh.v1.EnqueueService(address, grpc.credentials.createInsecure());
const id = '018f0e2e-7e0a-7aaa-8000-000000000000';
const until = (seconds) => ({ deadline: Date.now() + seconds * 1000 });
const failure = (error) => ({
  code: error.code,
  details: error.details,
  rich: error.metadata.get('grpc-status-details-bin').map((value) => value.toString('latin1')),
});
const answered = (job) => ({ worker: job.workerId, size: job.output.data.length });
const unary = (namespace, metadata, seconds = 15) =>
  new Promise((resolve) =>
    client.getJob({ namespace, jobId: id }, metadata, until(seconds), (error, response) =>
      resolve(error ? failure(error) : answered(response.job)),
    ),
  );
const read = (call) =>
  new Promise((resolve) => {
    const got = [];
    call.on('data', (response) => got.push(response.resumeToken ?? response.firstItem));
    call.on('error', (error) => resolve({ got: got.length, ...failure(error) }));
    call.on('end', () => resolve({ got: got.length }));
  });
const upload = (pieces) =>
  new Promise((resolve, reject) => {
    const call = client.uploadInput(until(15), (error, response) =>
      error ? reject(error) : resolve(response.payload.data.toString()),
    );
    for (let n = 0; n < pieces; n++) call.write({ chunk: Buffer.alloc(100000) });
    call.end();
  });
const cancelled = () =>
  new Promise((resolve) => {
    const call = client.getJob({ namespace: 'hangs', jobId: id }, until(15), (error) =>
      resolve(error.code),
    );
    setTimeout(() => call.cancel(), 100);
  });
async function main() {
  const metadata = new grpc.Metadata();
  metadata.set('x-name', 'node');
  const both = client.enqueueStream(until(15));
  for (const n of [1, 2, 3]) both.write({ items: Array(n).fill({}) });
  both.end();
  const said = {
    unary: await unary('default', metadata),
    missing: await unary('missing', metadata),
    late: (await unary('hangs', metadata, 0.3)).code,
    cancelled: await cancelled(),
    watch: await read(client.watchJobs({ namespace: 'default', jobIds: [id] }, until(15))),
    broken: await read(client.watchJobs({ namespace: 'missing', jobIds: [id] }, until(15))),
    upload: await upload(30),
    stream: await read(both),
    many: (await Promise.all(Array(100).fill().map(() => unary('default', metadata)))).length,
  };
  console.log(JSON.stringify(said));
  client.close();
}
main();
"""


@pytest.fixture(scope="module")
def node() -> list[str]:
    """Whether a package registry answers is no property of the servers: that alone skips."""
    try:
        return node_with_packages(EXAMPLE)
    except InstallError as error:
        pytest.skip(f"npm could not install examples/node: {error}")


@for_both
async def test_node_makes_each_kind_of_call_and_reads_errors(kind: str, node: list[str]) -> None:
    async with sample(kind) as m:
        command = (*node, "-", m.server.address, str(ROOT / "proto"))
        code, out, errors = await ran(*command, said=NODE.encode())
        assert code == 0, errors
    said = json.loads(out)
    assert said["unary"] == {"worker": "node", "size": len(LARGE)}
    assert said["missing"]["code"] == 5
    assert "JOB_NOT_FOUND" in said["missing"]["rich"][0]
    assert (said["late"], said["cancelled"]) == (4, 1)
    assert said["watch"] == {"got": 10}
    assert (said["broken"]["got"], said["broken"]["code"]) == (5, 5)
    assert "JOB_NOT_FOUND" in said["broken"]["rich"][0]
    assert said["upload"] == "3000000"
    assert said["stream"] == {"got": 3}
    assert said["many"] == 100


# --- HTTP/1


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /a HTTP/1.0\r\n\r\n"]
)
@holds_for("own", "own-uvloop")
async def test_a_client_of_http1_is_answered_in_words(kind: str, first: bytes) -> None:
    """gRPC's own server hangs up."""
    async with serving(kind) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(first)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 505 ")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"gRPC" in body
        assert f"Content-Length: {len(body)}".encode() in head
        assert await s.calls.unary(b"x") == b"x"
