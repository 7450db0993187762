"""From flags and environment to one validated, frozen object, or to a list of everything wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

from services.mesh.config.settings import ConfigError, Kind, Reader, Spec, masked, reader_of, shown

C = TypeVar("C")

_COMMANDS = {
    "--help": "Show this help and exit.",
    "--check-config": "Check the configuration and exit with 0 or 2.",
    "--print-config": "Print the configuration, secrets masked, and exit.",
}


@dataclass(frozen=True, slots=True)
class _Setting:
    """One field of a config class with everything needed to read it and to talk about it."""

    name: str
    spec: Spec
    reader: Reader
    default: Any

    @property
    def variable(self) -> str:
        return f"JOBMESH_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def problem(self, text: str | None, expects: str) -> str:
        told = "not set" if text is None else repr(masked(text) if self.spec.secret else text)
        return f"{self.variable} ({self.flag}): {told}, expected {expects}"


def load(cls: type[C], argv: Sequence[str], environ: Mapping[str, str], program: str) -> C:
    """Read the configuration as a process does: may print and exit instead of returning.

    `--help`, `--print-config` and `--check-config` exit with 0; anything wrong exits with 2 after
    one line on stderr for each problem.
    """
    if {"--help", "-h"} & set(argv):
        _leave(sys.stdout, help_text(cls, program), 0)
    try:
        config = parse(cls, [arg for arg in argv if arg not in _COMMANDS], environ)
    except ConfigError as error:
        _leave(sys.stderr, "\n".join(f"{program}: {line}" for line in error.problems), 2)
    if "--print-config" in argv:
        _leave(sys.stdout, printed(config), 0)
    if "--check-config" in argv:
        _leave(sys.stdout, f"{program}: configuration is valid", 0)
    return config


def parse(cls: type[C], argv: Sequence[str], environ: Mapping[str, str]) -> C:
    """Read and check the configuration; raises ConfigError with every problem found."""
    settings = {setting.flag: setting for setting in _settings(cls)}
    given, problems = _flags(argv, settings)
    values: dict[str, Any] = {}
    for setting in settings.values():
        try:
            text = given.get(setting.flag, _from_environment(setting, environ))
            values[setting.name] = _value(setting, text)
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    config = cls(**values)
    whole = list(getattr(config, "problems", tuple)())
    if whole:
        raise ConfigError(whole)
    return config


def _settings(cls: type[Any]) -> Iterator[_Setting]:
    hints = get_type_hints(cls)
    for item in fields(cls):
        spec = item.metadata.get("spec") or Spec("")
        yield _Setting(
            item.name, spec, reader_of(hints[item.name], _kind(item, spec)), _default(item)
        )


def _kind(item: Field[Any], spec: Spec) -> Kind:
    return "seconds" if item.name.endswith("_seconds") and not spec.kind else spec.kind


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _from_environment(setting: _Setting, environ: Mapping[str, str]) -> str | None:
    file = environ.get(f"{setting.variable}_FILE")
    if setting.variable in environ or file is None or not setting.spec.secret:
        return environ.get(setting.variable)
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        problem = f"{setting.variable}_FILE: {file!r}, expected a readable file ({error.strerror})"
        raise ConfigError([problem]) from error


def _value(setting: _Setting, text: str | None) -> Any:
    if text is None:
        if setting.default is MISSING:
            raise ConfigError([setting.problem(None, setting.reader.expects)])
        return setting.default
    try:
        value = setting.reader.read(text)
    except ValueError as error:
        raise ConfigError([setting.problem(text, setting.reader.expects)]) from error
    if setting.default is MISSING and not value:
        raise ConfigError([setting.problem(text, setting.reader.expects)])
    _check_bounds(setting, text, value)
    return value


def _check_bounds(setting: _Setting, text: str, value: Any) -> None:
    low, high = setting.spec.low, setting.spec.high
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        ends = (("at least", low), ("at most", high))
        bounds = " and ".join(f"{word} {end:g}" for word, end in ends if end is not None)
        expects = f"{setting.reader.expects}, {bounds}"
        raise ConfigError([setting.problem(text, expects)])


def _flags(
    argv: Sequence[str], settings: Mapping[str, _Setting]
) -> tuple[dict[str, str], list[str]]:
    """The text given for each flag: `--name value`, `--name=value`, `--switch`, `--no-switch`."""
    given: dict[str, str] = {}
    problems: list[str] = []
    rest = iter(argv)
    for arg in rest:
        flag, equals, text = arg.partition("=")
        switch = _switch(flag, settings)
        if equals and flag in settings:
            given[flag] = text
        elif switch is not None and not equals:
            given[switch[0]] = switch[1]
        elif flag in settings:
            value = next(rest, None)
            if value is None:
                problems.append(settings[flag].problem(None, settings[flag].reader.expects))
            else:
                given[flag] = value
        else:
            problems.append(_unknown(arg, settings))
    return given, problems


def _switch(flag: str, settings: Mapping[str, _Setting]) -> tuple[str, str] | None:
    """`--reflection` and `--no-reflection` as the flag they set and its text."""
    if flag in settings and isinstance(settings[flag].default, bool):
        return flag, "true"
    positive = f"--{flag.removeprefix('--no-')}"
    if flag.startswith("--no-") and isinstance(_default_of(positive, settings), bool):
        return positive, "false"
    return None


def _default_of(flag: str, settings: Mapping[str, _Setting]) -> Any:
    return settings[flag].default if flag in settings else None


def _unknown(arg: str, settings: Mapping[str, _Setting]) -> str:
    flag = arg.partition("=")[0]
    near = get_close_matches(flag, [*settings, *_COMMANDS], n=1)
    hint = f"did you mean {near[0]}?" if near else "--help lists the flags"
    return f"{flag}: no such flag; {hint}"


def printed(config: Any) -> str:
    """The configuration as an environment file, secrets masked."""
    return "\n".join(
        f"{s.variable}={shown(getattr(config, s.name), secret=s.spec.secret)}"
        for s in _settings(type(config))
    )


def help_text(cls: type[Any], program: str) -> str:
    """The flags with their variables, what they expect and what they are when not given."""
    lines = [f"usage: {program} [--flag value]...", ""]
    for s in _settings(cls):
        default = "required" if s.default is MISSING else f"default: {_told_default(s)}"
        lines += [f"  {s.flag}  ({s.variable})", f"      {s.spec.help}"]
        lines += [f"      {s.reader.expects}; {default}"]
    lines += [""] + [f"  {flag}  {what}" for flag, what in _COMMANDS.items()]
    return "\n".join(lines)


def _told_default(setting: _Setting) -> str:
    return shown(setting.default, secret=setting.spec.secret) or "empty"


def _leave(stream: Any, text: str, status: int) -> NoReturn:
    stream.write(f"{text}\n")
    raise SystemExit(status)
