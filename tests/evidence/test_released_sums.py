"""An auditor meets shares of noise where they are weakest: those the guarantee counts on."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import compose
from dp_fedmed.evidence.released_sums import _noised_by_clients
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.mechanisms import ClientUpdates
from dp_fedmed.privacy.mechanisms.base import NoisedBy
from dp_fedmed.privacy.streams import RoundStreams
from dp_fedmed.privacy.streams.noise import NoiseKey


@pytest.mark.parametrize("place", ["client", "shares"])
def test_the_noise_is_the_least_that_is_accounted(place: NoisedBy) -> None:
    config = compose(["privacy=user", f"privacy.noise={place}", "federation.num_clients=10"])
    event = PrivacyEvent.full(unit="client", noise_multiplier=3.0)
    mechanism = ClientUpdates(event, max_norm=1.0, expected_cohort=10.0, noised_by=place)
    answers = {name: {"w": np.full(20_000, 1e6, np.float32)} for name in ("a", "b")}
    secrets = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32))
    shown = _noised_by_clients(config, mechanism, answers, secrets)["w"]
    exact = 2 * mechanism.sums.grid.values(mechanism.clipped(answers["a"])[0]["w"])
    assert (shown - exact).std() == pytest.approx(3.0, rel=0.03)
    assert np.linalg.norm(exact) == pytest.approx(2.0, rel=1e-6)
