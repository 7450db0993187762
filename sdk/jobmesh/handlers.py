"""Handlers: how a plain function becomes a job type.

    from jobmesh import Context, job

    @job("resize", retries=3, timeout=30)
    def resize(image: Resize, ctx: Context) -> str: ...

The decorated function stays callable as before. `jobmesh worker --app mymodule` imports the module,
collects what was decorated and serves those types. There is no global registry: a handler is found
in the module (or `App`) that was named, so importing two modules never mixes their types.

`async def` handlers run in the worker's event loop and must not block; plain functions run in
executor processes of their own, one attempt at a time each, so that a busy or crashing one cannot
stop the worker's heartbeat.

What a handler gets is decided by its annotations: a parameter annotated `Context` gets the context;
the other one (if any) gets the input: `bytes` as it is, `pathlib.Path` as a file to read (large
inputs), a dataclass built from JSON, anything else the decoded JSON value. What it returns becomes
the output: None is empty, bytes stay bytes, a `pathlib.Path` is uploaded as a file, anything else
becomes JSON (dataclasses too).
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from jobmesh.codec import BYTES_TYPE
from jobmesh.commands import Command, check_limits, check_type
from jobmesh.errors import HandlerError
from jobmesh.invocation import parameters_of
from jobmesh.retry import MAX_ATTEMPTS, Retry

if TYPE_CHECKING:
    from jobmesh.client import AsyncClient, AsyncJobHandle, Client, JobHandle
    from jobmesh.options import EnqueueOptions

__all__ = [
    "App",
    "Command",
    "HandlerError",
    "HandlerSpec",
    "JobFunction",
    "job",
    "load_commands",
    "load_handlers",
]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """What a worker needs to know about one job type."""

    type: str
    function: Callable[..., Any]
    #: Short for exponential backoff with this many retries (attempts minus one).
    retries: int = 0
    #: Seconds an attempt may run; None leaves it to the job or the worker.
    timeout: float | None = None
    #: Attempts at once per worker; None lets the worker choose by kind (loop or executor).
    capacity: int | None = None
    #: What follows a failed attempt. Not together with `retries`.
    retry: Retry | None = None

    @property
    def asked_retry(self) -> Retry | None:
        """What the handler asks for, for jobs that say nothing themselves; None: nothing."""
        if self.retry is not None:
            return self.retry
        return Retry.exponential(attempts=self.retries + 1) if self.retries else None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


class JobFunction(Generic[P, R]):
    """A decorated function: callable as before, and known as a job type."""

    def __init__(self, function: Callable[P, R], spec: HandlerSpec) -> None:
        self.spec = spec
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.spec.type!r} {self.__module__}.{self.__name__}>"

    def enqueue(
        self,
        input: Any = None,
        *,
        client: Client | None = None,
        namespace: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle:
        """Submits a job of this type: the input is checked here, against the annotation.

        Without a client, the process' shared one is used (JOBMESH_ADDRESS, or the local mesh).
        """
        from jobmesh.client import shared_client

        chosen = client or shared_client()
        return chosen.enqueue(self, input, namespace=namespace, **options)

    async def aenqueue(
        self,
        input: Any = None,
        *,
        client: AsyncClient,
        namespace: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> AsyncJobHandle:
        """The same from a coroutine, through an AsyncClient of its own loop."""
        return await client.enqueue(self, input, namespace=namespace, **options)


def job(
    type: str | None = None,
    *,
    retries: int = 0,
    retry: Retry | None = None,
    timeout: float | None = None,
    capacity: int | None = None,
) -> Callable[[Callable[P, R]], JobFunction[P, R]]:
    """Makes a function the handler of a job type (its own name by default, with '-' for '_').

    `retries` (or `retry`) and `timeout` hold for jobs that say nothing themselves.
    """
    if callable(type):  # else nothing would be decorated, and nothing said
        name = getattr(type, "__name__", "the function")
        raise HandlerError(f"@job above {name}: write @job(), or @job('its-type')")

    def decorate(function: Callable[P, R]) -> JobFunction[P, R]:
        name = type or function.__name__.replace("_", "-")
        spec = HandlerSpec(name, function, retries, timeout, capacity, retry)
        _check(spec)
        return JobFunction(function, spec)

    return decorate


def _check(spec: HandlerSpec) -> None:
    check_type(spec.type)
    check_limits(spec.type, spec.timeout, spec.capacity)
    retries: object = spec.retries
    if not isinstance(retries, int) or retries < 0:
        raise HandlerError(
            f"job {spec.type!r}: retries must be a number, not negative: {retries!r}"
        )
    if spec.retry is not None and spec.retries:
        raise HandlerError(f"job {spec.type!r}: give retry or retries, not both")
    asked = spec.asked_retry
    if asked is not None and asked.attempts > MAX_ATTEMPTS:
        raise HandlerError(
            f"job {spec.type!r}: at most {MAX_ATTEMPTS} attempts in all, not {asked.attempts}"
        )


@dataclass(slots=True)
class App:
    """A named group of handlers, for modules that hold several. `--app mymodule:app` selects it."""

    name: str
    functions: list[JobFunction[Any, Any]] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    def job(
        self,
        type: str | None = None,
        *,
        retries: int = 0,
        retry: Retry | None = None,
        timeout: float | None = None,
        capacity: int | None = None,
    ) -> Callable[[Callable[P, R]], JobFunction[P, R]]:
        """Like the module's `job`, and adds the function to this app."""
        as_job = job(type, retries=retries, retry=retry, timeout=timeout, capacity=capacity)

        def decorate(function: Callable[P, R]) -> JobFunction[P, R]:
            made = as_job(function)
            self.functions.append(made)
            return made

        return decorate

    def command(
        self,
        type: str,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        capacity: int | None = None,
        directory: str = "",
        environ: Mapping[str, str] | None = None,
        content_type: str = BYTES_TYPE,
    ) -> Command:
        """Has a program serve a job type; see `jobmesh.commands`."""
        if isinstance(argv, str):
            raise HandlerError(f"command {type!r}: argv is a list of words: shlex.split(…)")
        made = Command(
            type, tuple(argv), timeout, capacity, directory, dict(environ or {}), content_type
        )
        self.commands.append(made)
        return made


def load_handlers(app: str) -> dict[str, HandlerSpec]:
    """Imports `module` or `module:app` and returns its functions by type."""
    found = _load(app).items()
    return {type: one.spec for type, one in found if isinstance(one, JobFunction)}


def load_commands(app: str) -> dict[str, Command]:
    """Imports `module` or `module:app` and returns its commands by type."""
    return {type: one for type, one in _load(app).items() if isinstance(one, Command)}


def _load(app: str) -> dict[str, JobFunction[Any, Any] | Command]:
    module_name, _, attribute = app.partition(":")
    handlers: dict[str, JobFunction[Any, Any] | Command] = {}
    for one in _handlers(_import(module_name), attribute):
        type = one.type if isinstance(one, Command) else one.spec.type
        if handlers.setdefault(type, one) is not one:
            raise HandlerError(f"app {app!r} has two handlers of type {type!r}")
        if isinstance(one, JobFunction):
            parameters_of(one.spec.function)  # a signature nobody can call is refused here
    if not handlers:
        raise HandlerError(f"app {app!r} has no handlers: decorate functions with @jobmesh.job(…)")
    return handlers


def _import(module_name: str) -> object:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself or a package around it; what it imports may be called alike.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise HandlerError(
                f"cannot import app module {module_name!r}: "
                "run from its folder, or put it on PYTHONPATH"
            ) from error
        raise _broken(module_name, error) from error
    except Exception as error:
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: Exception) -> HandlerError:
    """Says what the module said, and where in it: the way there through our code helps nobody."""
    *_, last = traceback.extract_tb(error.__traceback__)
    place = f"{last.filename}, line {last.lineno}"
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
        error = SyntaxError(error.msg)
    why = f"{type(error).__name__}: {error}"
    return HandlerError(f"cannot import app module {module_name!r}: {why} ({place})")


def _handlers(module: object, attribute: str) -> Iterator[JobFunction[Any, Any] | Command]:
    if attribute:
        app = getattr(module, attribute, None)
        if not isinstance(app, App):
            raise HandlerError(f"{attribute!r} in the app module is not a jobmesh.App")
        yield from app.functions
        yield from app.commands
        return
    for value in vars(module).values():
        if isinstance(value, JobFunction | Command):
            yield value
        elif isinstance(value, App):
            yield from value.functions
            yield from value.commands
