"""The model of the shard serves namespaces in turn as Postgres does, by the same rules."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.integration.turn_rules import TurnRules
from tests.simulation.shard import ModelShard
from tests.unit.simulation.test_model_shard import Time


class TestTurnsOfTheModel(TurnRules):
    """The rules that hold for every store."""

    @pytest.fixture
    def store(self) -> Any:
        return ModelShard("s0", Time(), Random(1))
