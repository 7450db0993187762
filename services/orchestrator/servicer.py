"""Transport: unpack, call one use case, pack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc.aio
from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2_grpc as rpc

from services.mesh.errors import InvalidField
from services.mesh.jobs.reports import Report, Successes
from services.mesh.rpc import Rules
from services.mesh.rpc.work import WorkLimit
from services.mesh.runtime import DrainSignal, together
from services.mesh.telemetry.tracing import NO_SPAN, Span, Tracing
from services.mesh.wire.events import event_to_proto
from services.mesh.wire.jobs import filter_from_proto
from services.mesh.wire.values import timedelta_of
from services.orchestrator import convert, convert_reports
from services.orchestrator.app.changes import Changes
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.order import page_of_events
from services.orchestrator.app.orphans import Orphans
from services.orchestrator.app.reports import Reports, Verdict
from services.orchestrator.app.schedules import Schedules
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.stats import Statistics
from services.orchestrator.app.submission import Submission
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.conversation import Answers, conversed
from services.orchestrator.servicer_changes import ChangeCalls
from services.orchestrator.servicer_puts import PutStream
from services.orchestrator.servicer_schedules import ScheduleCalls

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_STATS_SECONDS = 5.0
#: Report messages of one worker that may be under way at once, or wait for their verdicts to be
#: read; then its stream is not read on.
REPORTS_UNDER_WAY = 16


class OrchestratorServicer(ChangeCalls, ScheduleCalls, rpc.OrchestratorServiceServicer):
    """The RPCs of the Orchestrator. Those not overridden answer UNIMPLEMENTED."""

    def __init__(
        self,
        submission: Submission,
        lookup: Lookup,
        changes: Changes,
        reports: Reports,
        schedules: Schedules,
        statistics: Statistics,
        shards: Shards,
        topology: TopologyKeeper,
        drain: DrainSignal,
        tracing: Tracing,
        work: WorkLimit,
    ) -> None:
        self._submission, self._lookup, self._reports = submission, lookup, reports
        self._changes, self._orphans = changes, Orphans(lookup)
        self._schedules, self._statistics = schedules, statistics
        self._rules = Rules()
        self._shards, self._topology, self._drain = shards, topology, drain
        self._tracing, self._work = tracing, work

    # --- objects

    async def FindOrphans(
        self, request: pb.FindOrphansRequest, context: Context
    ) -> pb.FindOrphansResponse:
        return pb.FindOrphansResponse(
            input_keys=await self._orphans.inputs(request.input_keys),
            output_keys=await self._orphans.outputs(request.output_keys),
        )

    # --- jobs

    async def PutJobs(self, request: pb.PutJobsRequest, context: Context) -> pb.PutJobsResponse:
        with self._work.admitted(convert.count_of(request), request.ByteSize()):
            drafts = [convert.draft_from_proto(job) for job in request.jobs]
            if not (request.groups or request.keyed):
                return convert.put_answer_to_proto(await self._submission.put(drafts), request)
            # All is read before anything is stored: one that cannot be read fails the call.
            groups = [convert.alike_from_proto(group) for group in request.groups]
            groups += [convert.keyed_from_proto(group) for group in request.keyed]
            put_alike = together(*(self._submission.alike.put(*group) for group in groups))
            if not drafts:
                return convert.put_answer_to_proto((), request, await put_alike)
            outcomes, alike = await asyncio.gather(self._submission.put(drafts), put_alike)
            return convert.put_answer_to_proto(outcomes, request, alike)

    async def PutJobsStream(
        self, request_iterator: AsyncIterator[pb.PutJobsStreamRequest], context: Context
    ) -> AsyncIterator[pb.PutJobsStreamResponse]:
        stream = PutStream(partial(self.PutJobs, context=context), context)
        try:
            async with aclosing(conversed(stream, request_iterator, self._drain)) as responses:
                async for response in responses:
                    yield response
        finally:
            await stream.stop()

    async def GetJobs(self, request: pb.GetJobsRequest, context: Context) -> pb.GetJobsResponse:
        ids = convert.job_ids_from(request.job_ids)
        full = request.view == convert.FULL
        found = await self._lookup.get(ids, request.namespace or None, full=full)
        response = pb.GetJobsResponse()
        for text, one in zip(request.job_ids, found, strict=True):
            convert.fill_get_result(response.results.add(), text, one, full=full)
        return response

    async def ListJobs(
        self, request: pb.OrchestratorServiceListJobsRequest, context: Context
    ) -> pb.OrchestratorServiceListJobsResponse:
        before, schedule = request.before_job_id, request.filter.schedule
        full = request.view == convert.FULL
        made_by = await self._schedules.id_of(request.namespace, schedule) if schedule else None
        page = await self._lookup.page(
            filter_from_proto(request.filter, request.namespace, made_by),
            convert.job_id_from(before, "before_job_id") if before else None,
            request.page_size,
            full=full,
        )
        jobs = convert.first_of(convert.found_to_proto(found, full=full) for found in page.jobs)
        return pb.OrchestratorServiceListJobsResponse(
            jobs=jobs,
            more=page.more or len(jobs) < len(page.jobs),
            missing_shards=page.missing,
        )

    async def ListEvents(
        self, request: pb.ListEventsRequest, context: Context
    ) -> pb.ListEventsResponse:
        cursors = [
            (convert.job_id_from(cursor.job_id, f"cursors[{n}].job_id"), cursor.after_version)
            for n, cursor in enumerate(request.cursors)
        ]
        found = await self._lookup.events(cursors)
        return pb.ListEventsResponse(
            # Those of each job in order: who misses some asks for what comes after the last.
            events=convert.first_of(event_to_proto(event) for event in found.events),
            missing_shards=found.missing,
        )

    async def ListEnds(self, request: pb.ListEndsRequest, context: Context) -> pb.ListEndsResponse:
        keys = convert.job_keys_from(request.job_ids)
        found = await self._lookup.ends(keys, request.namespace or None)
        return pb.ListEndsResponse(
            ends=convert.ends_to_proto(found.by_shard),
            unknown_job_ids=b"".join(found.unknown),
            missing_shards=found.missing,
        )

    async def ListShardEvents(
        self, request: pb.ListShardEventsRequest, context: Context
    ) -> pb.ListShardEventsResponse:
        page = await page_of_events(
            self._shards,
            request.shard,
            convert.position_from(request),
            namespaces=request.namespaces,
            types=request.types,
            page_size=request.page_size,
        )
        return convert.event_page_to_proto(page)

    async def CancelJobs(
        self, request: pb.OrchestratorServiceCancelJobsRequest, context: Context
    ) -> pb.OrchestratorServiceCancelJobsResponse:
        ids = convert.job_ids_from(request.job_ids)
        results = await self._lookup.cancel(ids, request.namespace, request.reason)
        jobs = await self._lookup.get(ids, request.namespace, full=False)
        return pb.OrchestratorServiceCancelJobsResponse(
            results=[
                convert.cancel_result_to_proto(result, job)
                for result, job in zip(results, jobs, strict=True)
            ]
        )

    # --- reports

    async def ReportAttempts(
        self, request_iterator: AsyncIterator[pb.ReportAttemptsRequest], context: Context
    ) -> AsyncIterator[pb.ReportAttemptsResponse]:
        stream = ReportStream(self._reports, self._tracing)
        async with aclosing(conversed(stream, request_iterator, self._drain)) as responses:
            async for response in responses:
                yield response

    async def Stats(
        self, request: pb.StatsRequest, context: Context
    ) -> AsyncIterator[pb.StatsResponse]:
        given = request.HasField("interval")
        seconds = timedelta_of(request.interval).total_seconds() if given else DEFAULT_STATS_SECONDS
        async with aclosing(self._statistics.stream(seconds)) as loads:
            async for load in loads:
                yield convert.load_to_proto(load)

    # --- topology

    async def ListShards(
        self, request: pb.ListShardsRequest, context: Context
    ) -> pb.ListShardsResponse:
        topology = convert.topology_to_proto(self._topology.map, self._shards.views())
        return pb.ListShardsResponse(topology=topology)

    async def WatchTopology(
        self, request: pb.WatchTopologyRequest, context: Context
    ) -> AsyncIterator[pb.WatchTopologyResponse]:
        change = asyncio.Event()
        quit_shards = self._shards.listen(change.set)
        quit_map = self._topology.listen(change.set)
        try:
            while not self._drain.is_set():
                change.clear()
                topology = convert.topology_to_proto(self._topology.map, self._shards.views())
                yield pb.WatchTopologyResponse(topology=topology)
                await self._drain.first(change.wait())
        finally:
            quit_shards()
            quit_map()


class ReportStream:
    """One worker's stream: reads on while shards write, answers as each of them is done."""

    def __init__(self, reports: Reports, tracing: Tracing) -> None:
        self._reports, self._tracing = reports, tracing
        #: Commits under way, by job and fence; each belongs to the trace of its run.
        self._spans: dict[tuple[bytes, int], Span] = {}
        self._under_way = 0
        self._read_all = False
        #: The worker reads verdicts in columns.
        self._columns = False
        self._answers: Answers[pb.ReportAttemptsResponse] = Answers(REPORTS_UNDER_WAY)

    async def read(self, requests: AsyncIterator[pb.ReportAttemptsRequest]) -> None:
        worker_id = ""
        try:
            async for request in requests:
                if request.HasField("hello"):
                    worker_id = request.hello.worker_id
                    self._say_columns(request.hello)
                if not worker_id:
                    raise InvalidField("hello", "the first message must say who reports")
                await self._submit(request, worker_id)
        finally:
            self._read_all = True
            self._end_if_done()

    def _say_columns(self, hello: pb.ReportHello) -> None:
        """Only to a worker that knows of them: an older one expects nothing but verdicts."""
        if hello.columns and not self._columns:
            self._columns = True
            self._answers.say(pb.ReportAttemptsResponse(columns=True))

    def say_drain(self) -> None:
        self._answers.say(pb.ReportAttemptsResponse(draining=True))

    def responses(self) -> AsyncIterator[pb.ReportAttemptsResponse]:
        return self._answers.all()

    async def _submit(self, request: pb.ReportAttemptsRequest, worker_id: str) -> None:
        reports: list[Report] = []
        successes: list[Successes] = []
        refused: list[pb.ReportVerdict] = []
        for columns in request.succeeded:
            said, strange = convert_reports.successes_from_proto(columns, worker_id)
            refused += strange
            if said.keys:
                successes.append(said)
        for message in request.reports:
            report = convert_reports.report_from_proto(message, worker_id)
            if report is None:
                refused.append(convert_reports.invalid_verdict(message.job_id, message.dispatch_no))
            else:
                reports.append(report)
                self._trace(message)
        if refused:
            await self._answers.begin()
            self._answers.answer(pb.ReportAttemptsResponse(verdicts=refused))
        for one in successes:
            for part, verdicts in self._reports.submit_successes(one):
                await self._await(part, verdicts)
        for group, verdicts in self._reports.submit(reports):
            await self._await(group, verdicts)

    async def _await(
        self, group: Sequence[Report] | Successes, verdicts: asyncio.Future[list[Verdict]]
    ) -> None:
        await self._answers.begin()
        self._under_way += 1
        verdicts.add_done_callback(partial(self._answer, group))

    def _answer(
        self, group: Sequence[Report] | Successes, verdicts: asyncio.Future[list[Verdict]]
    ) -> None:
        self._under_way -= 1
        if verdicts.cancelled():
            self._answers.give_up()
        else:
            if self._spans and not isinstance(group, Successes):
                self._end_spans(group, verdicts.result())
            self._answers.answer(
                convert_reports.answer_to_proto(group, verdicts.result(), columns=self._columns)
            )
        self._end_if_done()

    def _trace(self, message: pb.AttemptReport) -> None:
        if self._tracing.enabled and message.traceparent:
            key = message.job_id, message.dispatch_no
            self._spans[key] = self._tracing.open_span("commit", parent=message.traceparent)

    def _end_spans(self, group: Sequence[Report], verdicts: list[Verdict]) -> None:
        for report, verdict in zip(group, verdicts, strict=True):
            span = self._spans.pop((report.job_id.bytes, report.fence), NO_SPAN)
            span.set("jobmesh.verdict", verdict.value)
            span.end()

    def _end_if_done(self) -> None:
        if self._read_all and self._under_way == 0:
            self._answers.end()
