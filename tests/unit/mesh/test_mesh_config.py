from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from services.mesh.config import (
    ConfigError,
    EtcdConfig,
    NatsConfig,
    OrchestratorConfig,
    S3Config,
    ServiceConfig,
    ShardsConfig,
    load,
    parse,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    listen: str = setting("127.0.0.1:0", "Where.", kind="address")
    idle_seconds: float = setting(1.0, "How long.", low=0.01, high=60)
    batch: int = setting(500, "How many.", low=1)
    fair: bool = setting(False, "Whether.")
    mode: Literal["fast", "safe"] = setting("safe", "Which way.")
    names: tuple[str, ...] = setting((), "Who.")
    shards: Mapping[str, str] = setting(help="Which.", secret=True)
    endpoint: str | None = setting(None, "Where to.")
    token: str = setting("", "Secret.", secret=True)

    def problems(self) -> Iterator[str]:
        if self.mode == "fast" and self.fair:
            yield "fair needs mode safe"


SHARDS = {"JOBMESH_SHARDS": "s0=x"}


def problems_of(argv: list[str], environ: Mapping[str, str] = SHARDS) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(Sample, argv, environ)
    return caught.value.problems


def test_defaults_hold_where_nothing_is_given() -> None:
    config = parse(Sample, [], SHARDS)
    assert config == Sample(shards={"s0": "x"})


def test_flag_wins_over_environment() -> None:
    environ = {**SHARDS, "JOBMESH_BATCH": "10"}
    assert parse(Sample, [], environ).batch == 10
    assert parse(Sample, ["--batch", "20"], environ).batch == 20
    assert parse(Sample, ["--batch=30"], environ).batch == 30


def test_whole_seconds_stay_whole() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Leased:
        lease_seconds: int = setting(5, "A lease of etcd is granted for whole seconds.", low=2)

    for text in ("120", "120s", "2m"):
        read = parse(Leased, ["--lease-seconds", text], {}).lease_seconds
        assert (read, type(read)) == (120, int)
    with pytest.raises(ConfigError, match="whole seconds"):
        parse(Leased, ["--lease-seconds", "2500ms"], {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("250ms", 0.25), ("0.5m", 30), ("12", 12), (".5", 0.5), ("1 m", 60)],
)
def test_durations_are_read_in_any_unit(text: str, seconds: float) -> None:
    assert parse(Sample, ["--idle-seconds", text], SHARDS).idle_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("argv", "fair"),
    [
        (["--fair"], True),
        (["--no-fair"], False),
        (["--fair=yes"], True),
        (["--fair=off"], False),
    ],
)
def test_switches_come_in_every_usual_form(argv: list[str], fair: bool) -> None:
    assert parse(Sample, argv, SHARDS).fair is fair


def test_lists_and_mappings_are_split_at_commas() -> None:
    argv = ["--names", "a, b,,c", "--shards", "s0=pg://u:p@h1,h2/d?x=1,s1=pg://h/d"]
    config = parse(Sample, argv, {})
    assert config.names == ("a", "b", "c")
    assert config.shards == {"s0": "pg://u:p@h1,h2/d?x=1", "s1": "pg://h/d"}


def test_empty_text_is_none_for_an_optional_setting() -> None:
    environ = {**SHARDS, "JOBMESH_ENDPOINT": ""}
    assert parse(Sample, [], environ).endpoint is None
    assert parse(Sample, ["--endpoint", "x"], environ).endpoint == "x"


def test_ipv6_address_keeps_its_brackets() -> None:
    assert parse(Sample, ["--listen", "[::1]:0080"], SHARDS).listen == "[::1]:80"


def test_every_problem_is_told_at_once_with_variable_flag_value_and_expectation() -> None:
    argv = ["--listen", "nowhere", "--batch", "0", "--mode", "slow", "--idle-seconds", "soon"]
    assert problems_of([*argv, "--fair=perhaps"], {}) == (
        "JOBMESH_LISTEN (--listen): 'nowhere', expected an address \"host:port\"",
        "JOBMESH_IDLE_SECONDS (--idle-seconds): 'soon', "
        'expected a duration like "5s", "250ms", "2m"',
        "JOBMESH_BATCH (--batch): '0', expected a whole number, at least 1",
        "JOBMESH_FAIR (--fair): 'perhaps', expected true or false",
        "JOBMESH_MODE (--mode): 'slow', expected one of fast, safe",
        'JOBMESH_SHARDS (--shards): not set, expected pairs "name=value" separated by commas',
    )


def test_out_of_range_value_names_both_bounds() -> None:
    (problem,) = problems_of(["--idle-seconds", "2h"])
    assert problem.endswith("at least 0.01 and at most 60")


def test_secret_value_is_masked_in_a_problem() -> None:
    (problem,) = problems_of(["--shards", "hunter2"])
    assert "hunter2" not in problem
    assert "***" in problem


@pytest.mark.parametrize("text", ["a=1,a=2", "=x", ""])
def test_mapping_with_a_repeated_or_missing_name_is_refused(text: str) -> None:
    assert problems_of(["--shards", text])


def test_flag_without_value_is_refused() -> None:
    assert problems_of(["--batch"]) == (
        "JOBMESH_BATCH (--batch): not set, expected a whole number",
    )


def test_unknown_flag_is_refused_with_the_nearest_one() -> None:
    assert problems_of(["--bach=3"]) == ("--bach: no such flag; did you mean --batch?",)


def test_variable_of_another_service_is_left_alone() -> None:
    assert parse(Sample, [], {**SHARDS, "JOBMESH_OTHERS": "x"}) == parse(Sample, [], SHARDS)


def test_rules_that_span_fields_are_checked_last() -> None:
    assert problems_of(["--mode=fast", "--fair"]) == ("fair needs mode safe",)


def test_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    environ = {**SHARDS, "JOBMESH_TOKEN_FILE": str(secret)}
    assert parse(Sample, [], environ).token == "s3cret"
    environ["JOBMESH_TOKEN_FILE"] = str(tmp_path / "none")
    assert "expected a readable file" in problems_of([], environ)[0]


def test_bad_configuration_exits_with_2_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Sample, ["--batch", "many"], SHARDS, "jobmesh-sample")
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told == "jobmesh-sample: JOBMESH_BATCH (--batch): 'many', expected a whole number\n"


def test_check_config_says_whether_it_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Sample, ["--check-config"], SHARDS, "jobmesh-sample")
    assert caught.value.code == 0
    with pytest.raises(SystemExit) as caught:
        load(Sample, ["--check-config"], {}, "jobmesh-sample")
    assert caught.value.code == 2
    capsys.readouterr()


def test_printed_config_masks_secrets_and_can_be_read_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--print-config", "--token", "hunter2", "--shards", "s0=pg://u:hunter2@h/d"]
    with pytest.raises(SystemExit):
        load(Sample, [*argv, "--names=a,b"], {}, "jobmesh-sample")
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    assert "JOBMESH_SHARDS=s0=pg://u:***@h/d" in printed
    environ = dict(line.split("=", 1) for line in printed.splitlines())
    assert parse(Sample, [], environ).names == ("a", "b")


def test_help_names_every_setting_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Sample, ["--help", "--nonsense"], {}, "jobmesh-sample")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for item in fields(Sample):
        assert f"JOBMESH_{item.name.upper()}" in text


@dataclass(frozen=True, kw_only=True)
class Everything(ShardsConfig, NatsConfig, EtcdConfig, S3Config, OrchestratorConfig, ServiceConfig):
    """All mixins together, as no service has them."""


def test_shared_mixins_combine_and_read_their_variables() -> None:
    environ = {
        "JOBMESH_SHARD_DSNS": "s0=postgresql://h/d",
        "JOBMESH_ETCD_ENDPOINTS": "a:1,b:2",
        "JOBMESH_METRICS_LISTEN": "127.0.0.1:9",
        "JOBMESH_DRAIN_SECONDS": "2m",
    }
    config = parse(Everything, ["--no-reflection"], environ)
    assert config.etcd_endpoints == ("a:1", "b:2")
    assert config.metrics_listen == "127.0.0.1:9"
    assert config.drain_seconds == 120
    assert config.reflection is False


def test_certificate_without_key_is_refused() -> None:
    environ = {"JOBMESH_SHARD_DSNS": "s0=x", "JOBMESH_TLS_CERT_FILE": "cert.pem"}
    with pytest.raises(ConfigError, match="go together"):
        parse(Everything, [], environ)
