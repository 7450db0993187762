"""How an attempt ends, what is said about it, and what the row answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from services.mesh.jobs.model import NO_PAYLOAD, Payload
from services.mesh.jobs.retry import TOTAL_TIMEOUT, Failure, FailureKind
from services.worker.domain.attempt import Attempt, Stop

#: The contract's limits on a failure's texts.
MAX_TYPE = 200
MAX_MESSAGE_BYTES = 8192
MAX_TRACEBACK_BYTES = 16384

CANCEL_DELAY_SECONDS = 1.0
#: The type and the text of the failure that passing a limit is.
_TIMEOUTS = {
    Stop.TIMEOUT: ("RunTimeout", "ran past its limit"),
    Stop.SILENCE: ("ProgressTimeout", "gave no sign of life for its limit"),
    Stop.TOTAL: (TOTAL_TIMEOUT, "the job's total time is over"),
}
#: By then the worker's lease is revoked, and schedulers have dropped the grabs it left parked with
#: them. Due at once, the job would be sent to the very worker that gives it back.
DRAIN_DELAY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned, and its output is in place."""

    output: Payload = NO_PAYLOAD


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler failed."""

    failure: Failure
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt is given back unharmed; the job is due again after `delay` seconds."""

    reason: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asks to be run again after `delay` seconds; it costs the job no attempt."""

    delay: float


Ending = Succeeded | Failed | HandedBack | Snoozed
_ENDINGS = (Succeeded, Failed, HandedBack, Snoozed)
#: What a handler that returns nothing ends with.
EMPTY_SUCCESS = Succeeded()


@dataclass(frozen=True, slots=True)
class Started:
    """The handler runs; said of attempts that take longer than a moment."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The handler said how far it is."""

    done: float
    total: float
    message: str
    time_us: int


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The handler stored what a later attempt may go on from. An empty payload removes it."""

    state: Payload


@dataclass(slots=True, eq=False)
class Report:
    """Something to tell about one attempt, and how often it was told in vain."""

    attempt: Attempt
    what: Ending | Started | Progressed | Checkpointed
    traceparent: str = ""
    tries: int = 0
    #: The row could not take what was reported first.
    refused: bool = False
    #: Who waits for the final verdict.
    on_verdict: Callable[[Verdict], None] | None = None

    @property
    def is_ending(self) -> bool:
        return isinstance(self.what, _ENDINGS)

    @property
    def is_checkpoint(self) -> bool:
        return isinstance(self.what, Checkpointed)

    @property
    def is_news(self) -> bool:
        """Whether the attempt's ending makes it superfluous."""
        return isinstance(self.what, Started | Progressed)


@unique
class Verdict(Enum):
    """The row's answer to a report."""

    COMMITTED = "committed"
    STALE = "stale"
    RETRY = "retry"
    INVALID = "invalid"


class Answer(NamedTuple):
    """A verdict, and the reports it is about, by the keys and fences of their attempts."""

    verdict: Verdict
    dispatches: Sequence[tuple[bytes, int]]


def outcome_of(ending: Ending) -> str:
    """The ending's name in metrics and in Describe."""
    if isinstance(ending, Succeeded):
        return "succeeded"
    if isinstance(ending, HandedBack):
        return "handed_back"
    if isinstance(ending, Snoozed):
        return "snoozed"
    return "timed_out" if ending.failure.kind is FailureKind.TIMEOUT else "failed"


def ending_of_stop(stop: Stop, seconds: float | None) -> Ending | None:
    """What to report of an attempt that was stopped; None where nobody wants to hear of it.

    `seconds` is the limit that it passed, if it was stopped for one.
    """
    if stop is Stop.STALE:
        return None
    if stop in _TIMEOUTS:
        type_, text = _TIMEOUTS[stop]
        limit = "" if seconds is None else f" of {seconds:g} s"
        return Failed(failure(type_, text + limit, kind=FailureKind.TIMEOUT))
    if stop is Stop.DRAIN:
        return HandedBack("drain", DRAIN_DELAY_SECONDS)
    return HandedBack(stop.value, CANCEL_DELAY_SECONDS)


def crashed(exit_code: int) -> Failed:
    """The executor's process ended before its handler did."""
    how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    text = f"the executor process ended while the handler ran: {how}"
    return Failed(failure("ExecutorCrashed", text, exit_code=exit_code))


def executor_lost(name: str) -> Failed:
    """An attached executor went while it had the attempt."""
    text = f"the executor {name!r} went while it ran the attempt"
    return Failed(failure("ExecutorLost", text, kind=FailureKind.INFRASTRUCTURE))


def refused() -> Failed:
    """The mesh cannot store what was reported: say so plainly, or the job would never end."""
    text = "the mesh could not store what this attempt reported; the worker's log has it"
    return Failed(failure("ReportRefused", text))


def unreadable_input(error_type: str, message: str) -> Failed:
    """The input is gone or not what was recorded: no later attempt can go better."""
    return Failed(failure(error_type, message, kind=FailureKind.PERMANENT))


def failure(
    type_: str,
    message: str,
    traceback: str = "",
    *,
    kind: FailureKind = FailureKind.ERROR,
    exit_code: int | None = None,
) -> Failure:
    """A failure whose texts fit the contract."""
    return Failure(
        type=type_[:MAX_TYPE] or "Error",
        message=head(message, MAX_MESSAGE_BYTES),
        traceback=tail(traceback, MAX_TRACEBACK_BYTES),
        kind=kind,
        exit_code=exit_code,
    )


def head(text: str, limit: int) -> str:
    """The text cut to so many bytes of UTF-8."""
    if text.isascii():
        return text[:limit]
    # "replace": a lone surrogate, as in a file name that is not UTF-8, has no place on the wire.
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def tail(text: str, limit: int) -> str:
    """The end of the text, in so many bytes: of a traceback the last frames tell the most."""
    if text.isascii():
        return text[max(0, len(text) - limit) :]
    data = text.encode(errors="replace")
    return data[max(0, len(data) - limit) :].decode(errors="ignore")
