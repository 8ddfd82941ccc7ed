"""The attack on a pair of inputs."""

from __future__ import annotations

import numpy as np

from dp_fedmed.data import load_data
from dp_fedmed.evidence import release_sources
from dp_fedmed.evidence.findings import targets
from dp_fedmed.evidence.one_release import attack, worst_of
from tests.evidence.test_audit import record_level


def test_scores_are_0_without_the_canary_and_1_with_it() -> None:
    config = record_level("privacy.sample.noise_multiplier=0.05")
    data = load_data(config.data, seed=0)
    found = release_sources.attacked(config, targets(config)[0], data, np.random.default_rng(0))
    seen = attack(worst_of(found.sources), 40)
    assert np.allclose(seen.scores, seen.present, atol=0.4)
    assert seen.correct == 40
