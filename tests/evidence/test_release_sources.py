"""The releases that are attacked, and the canaries that they are tried with."""

from __future__ import annotations

import numpy as np

from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.evidence import release_sources
from dp_fedmed.evidence.findings import targets
from dp_fedmed.evidence.one_release import worst_pair
from tests.evidence.test_audit import record_level

TINY = ("task=textures", "data.num_records=60", "data.image_size=32", "anomaly.backbone=tiny")


def anomaly(*overrides: str) -> Config:
    sigma = "privacy.sample.noise_multiplier=2"
    return compose(
        [*TINY, "privacy=sample", "privacy.sample.target_epsilon=null", sigma, *overrides]
    )


def test_canaries_are_no_clients_records() -> None:
    data = load_data(record_level().data, seed=0)
    made = release_sources.candidates(data, np.random.default_rng(0))
    theirs = {row.tobytes() for row in data.train.x}
    assert not any(row.tobytes() in theirs for row in made.x)


def test_each_release_of_a_statistic_is_attacked() -> None:
    config = anomaly("federation.num_rounds=2")
    data = load_data(config.data, seed=0)
    found = release_sources.attacked(config, targets(config)[0], data, np.random.default_rng(0))
    sizes = [sum(v.size for v in worst_pair(scene).difference.values()) for scene in found.sources]
    assert len(set(sizes)) == 2  # a mean, then covariances
