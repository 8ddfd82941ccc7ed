"""Which half is made for which settings."""

from __future__ import annotations

import pytest

from dp_fedmed.assemble import make_learner, make_work
from dp_fedmed.config import compose
from dp_fedmed.data import load_data
from tests.runs.anomaly.runs import TINY


@pytest.mark.parametrize(
    ("words", "learner", "work"),
    [
        ([], "NetworkLearner", "NetworkWork"),
        (["federation=local_only"], "LocalOnlyLearner", "NetworkWork"),
        (TINY, "AnomalyLearner", "AnomalyWork"),
    ],
)
def test_settings_name_what_is_learnt(words: list[str], learner: str, work: str) -> None:
    config = compose(["privacy=none", *words])
    data = load_data(config.data, seed=config.seed)
    made = make_learner(config, data, {"client-00000": 10, "client-00001": 20})
    assert type(made).__name__ == learner
    assert type(make_work(config)).__name__ == work
