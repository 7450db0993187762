"""Log lines: a sentence, a stable `action`, and the facts as fields.

log.info("claimed jobs", extra={"action": "jobs_claimed", "shard": "s0", "count": 12})

Everything in `extra` becomes a field. Every line also has time, level, service, instance, logger
and, inside a span, its trace id.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from services.mesh.telemetry.tracing import current_trace_id

# What a LogRecord has by itself; any other attribute came from `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Passwords in addresses, and the signed part of pre-signed object URLs.
_SECRETS = re.compile(r"(://[^:/@\s]*:)[^@\s/]+(?=@)|(X-Amz-(?:Signature|Credential)=)[^&\s\"']+")
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def configure(
    service: str,
    instance: str,
    *,
    format: Literal["json", "console"] = "console",
    level: str = "info",
    stream: TextIO | None = None,
) -> None:
    """Send all log lines of this process to one stream in one format; replaces what was there."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    colour = format == "console" and target.isatty()
    handler.setFormatter(
        JsonFormatter(service, instance) if format == "json" else ConsoleFormatter(service, colour)
    )
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # At debug, these say more about themselves than about us.
    for noisy in ("asyncio", "grpc", "botocore", "boto3", "urllib3", "s3transfer", "nats"):
        logging.getLogger(noisy).setLevel(max(logging.INFO, logging.getLevelName(level.upper())))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The facts of a line: what was passed as `extra`, and the trace id if there is one."""
    fields = {key: value for key, value in vars(record).items() if key not in _OWN}
    trace_id = current_trace_id()
    if trace_id:
        fields.setdefault("trace_id", trace_id)
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._service, self._instance = service, instance

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _when(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "instance": self._instance,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(fields_of(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redacted(json.dumps(line, default=str, ensure_ascii=False))


class ConsoleFormatter(logging.Formatter):
    """For people: time, level, service, sentence, then the facts as key=value."""

    def __init__(self, service: str, colour: bool) -> None:
        super().__init__()
        self._service, self._colour = service, colour

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{k}={v}" for k, v in fields_of(record).items() if k != "action")
        level = self._paint(f"{record.levelname.lower():<7}", _COLOURS.get(record.levelname, "0"))
        when = _when(record).strftime("%H:%M:%S.%f")[:-3]
        text = f"{when} {level} {self._service} {record.getMessage()}"
        text += f"  {self._paint(fields, '2')}" if fields else ""
        text += f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return redacted(text)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def redacted(text: str) -> str:
    """The text without secrets that libraries like to put into messages."""
    if "://" not in text:
        return text
    return _SECRETS.sub(lambda match: f"{match[1] or match[2]}***", text)


def _when(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
