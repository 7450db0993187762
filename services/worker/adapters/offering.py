"""What a worker serves: the functions and commands of its app, and the commands it was given."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobmesh.commands import Command, parse_commands
from jobmesh.errors import HandlerError
from jobmesh.handlers import HandlerSpec, load_commands, load_handlers
from jobmesh.policies import to_retry_policy
from jobmesh.v1 import retry_pb2
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.rpc import Rules
from services.mesh.runtime import StartupError
from services.worker.config import WorkerConfig


@dataclass(frozen=True, slots=True)
class Offering:
    """Handlers by type. A type is in one of the two."""

    functions: Mapping[str, HandlerSpec] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)

    @property
    def types(self) -> list[str]:
        return [*self.functions, *self.commands]

    @property
    def timeouts(self) -> dict[str, float]:
        """Seconds an attempt may run, of those that say."""
        said: dict[str, HandlerSpec | Command] = {**self.functions, **self.commands}
        return {type_: one.timeout for type_, one in said.items() if one.timeout is not None}

    @property
    def retry_policies(self) -> dict[str, retry_pb2.RetryPolicy | None]:
        """What each function asks for; None for one that asks for nothing."""
        asked = {type_: spec.asked_retry for type_, spec in self.functions.items()}
        return {
            type_: None if retry is None else to_retry_policy(retry)
            for type_, retry in asked.items()
        }

    @property
    def asked(self) -> dict[str, TypeSettings]:
        """The same for all to read, with how long an attempt may run."""
        timeouts, asked = self.timeouts, {}
        for type_, policy in self.retry_policies.items():
            asked[type_] = said = TypeSettings(handler_retry_policy=policy)
            if type_ in timeouts:
                said.handler_run_timeout.FromNanoseconds(round(timeouts[type_] * 1e9))
        return asked

    def of(self, types: tuple[str, ...]) -> Offering:
        """Only these types."""
        return Offering(
            {type_: one for type_, one in self.functions.items() if type_ in types},
            {type_: one for type_, one in self.commands.items() if type_ in types},
        )

    def capacities(self, config: WorkerConfig) -> dict[str, int]:
        """The operator's word, else the handler's, else what suits its kind."""
        processes = config.process_capacity or os.cpu_count() or 1
        room = {
            type_: spec.capacity or (config.async_capacity if spec.is_async else processes)
            for type_, spec in self.functions.items()
        }
        room |= {type_: one.capacity or processes for type_, one in self.commands.items()}
        return {type_: config.capacity or own for type_, own in room.items()}


def load_offering(config: WorkerConfig) -> Offering:
    """Import the app, and choose; StartupError says what is wrong with it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; an entry point does not
    try:
        whole = _whole(config)
    except HandlerError as error:
        raise StartupError(str(error)) from error
    unknown = [type_ for type_ in config.types if type_ not in whole.types]
    if unknown:
        known = ", ".join(sorted(whole.types))
        raise StartupError(f"app {config.app!r} has no type {unknown[0]!r}; it has: {known}")
    chosen = whole.of(config.types) if config.types else whole
    _check_policies(chosen)
    return chosen


def _check_policies(offering: Offering) -> None:
    """They become those of jobs, unseen by whoever checks what is submitted."""
    rules = Rules()
    for type_, policy in offering.retry_policies.items():
        for broken in () if policy is None else rules.violations(policy):
            raise StartupError(f"job {type_!r}: retry: {broken.field} {broken.description}")


def _whole(config: WorkerConfig) -> Offering:
    given = parse_commands(config.commands)
    if not config.app:
        return Offering({}, given)
    functions, commands = load_handlers(config.app), load_commands(config.app)
    twice = sorted(set(given) & (set(functions) | set(commands)))
    if twice:
        raise HandlerError(f"type {twice[0]!r} is served by app {config.app!r} and by a command")
    return Offering(functions, {**commands, **given})
