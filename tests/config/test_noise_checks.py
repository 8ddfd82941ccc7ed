"""Noise and masks where there is no sum to hide in are refused, with the key that decides."""

from __future__ import annotations

import pytest

from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError

SAMPLE = ("privacy=sample", "privacy.noise=shares", "training.local_steps=1")
USER = ("privacy=user", "privacy.noise=shares")
NONE = ("federation.secure_aggregation=true",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*USER, "federation.sampler=poisson", "federation.sample_rate=0.5"], "sampler=fixed"),
        ([*USER, "privacy.user.clipping=adaptive"], "clipping=fixed"),
        ([*USER, "federation.num_clients=2"], r"ask at least 3 clients"),
        ([*USER, "federation.num_clients=4", "federation.max_dropouts=2"], r"or lower one"),
        ([*SAMPLE, "federation=local_only"], "no server adds up"),
        ([*SAMPLE, "training.local_steps=2"], r"use training\.local_steps=1"),
        (["privacy=sample", *NONE], "use privacy.noise=shares"),
        (["task=textures", "privacy=none", *NONE], "rows, which do not add up"),
        (["privacy=none", "federation=local_only", *NONE], "answers that are added up"),
        (["privacy=none", *NONE, "federation.min_clients=2"], "max_dropouts; set that"),
    ],
)  # fmt: skip
def test_what_cannot_be_hidden_in_a_sum_is_refused_with_the_key(
    words: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        compose(words)
