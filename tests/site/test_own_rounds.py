"""A client's round as its settings have it: what is charged, noised, masked and told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.assemble import client_runtime
from dp_fedmed.config import Config
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import RoundOrder
from dp_fedmed.site.own_rounds import needed

ONE_STEP = ("training.batch_size=100000", "training.local_steps=1")


@pytest.mark.parametrize(
    ("words", "charged"),
    [
        (("privacy=none",), False),
        (("privacy=none", "federation.secure_aggregation=true"), False),
        (("privacy=user",), False),
        (("privacy=user", "privacy.noise=client"), True),
        (("privacy=user", "privacy.noise=shares"), True),
        (("privacy=sample",), True),
        (("privacy=sample", "privacy.noise=server", *ONE_STEP), True),
        (("privacy=hybrid",), True),
    ],
)
def test_a_client_pays_where_its_records_or_its_own_noise_are_at_stake(
    words: tuple[str, ...], charged: bool, small: Callable[..., Config], tmp_path: Path
) -> None:
    assert client_runtime(small(*words)).rounds.is_charged is charged


def test_an_order_without_noise_for_records_has_no_mechanism(small: Callable[..., Config]) -> None:
    rounds = client_runtime(small("privacy=sample")).rounds
    order = RoundOrder(
        input_shape=(30,), num_classes=2, run="r", streams="s", phase=0, style="sample"
    )
    with pytest.raises(ConfigError, match="no noise_multiplier for our records"):
        rounds.mechanism(order, 50)
    with pytest.raises(ConfigError, match="has no ledger"):
        needed("ledger", None)
