"""What a client's round is charged to: its records, itself as a whole, or both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_fedmed.assemble import own_answer, record_mechanism
from dp_fedmed.config import Config
from dp_fedmed.data import Records
from dp_fedmed.errors import SiteRefused
from dp_fedmed.federation import RecordOrder, RoundOrder
from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE, SECRET_FOLDER, MacKey
from dp_fedmed.site.accounts import ClientAccounts

NODE: dict[str, Any] = {"partition-id": 1, "num-partitions": 4}
ONE_STEP = ("training.batch_size=100000", "training.local_steps=1")


def made(small: Callable[..., Config], *words: str) -> Config:
    config = small(*words)
    secrets = Path(config.run_dir) / SECRET_FOLDER
    secrets.mkdir(parents=True)
    MacKey.create(secrets / LEDGER_KEY_FILE)
    return config


@pytest.mark.parametrize(
    ("words", "charged"),
    [
        (("privacy=sample", *ONE_STEP), ["client-00001"]),
        (("privacy=user", "privacy.noise=shares"), ["client-00001.updates"]),
        (("privacy=user", "privacy.noise=client"), ["client-00001.updates"]),
        (
            ("privacy=hybrid", "privacy.noise=shares", *ONE_STEP),
            ["client-00001", "client-00001.updates"],
        ),
    ],
)
def test_each_unit_has_a_ledger_of_its_own(
    words: tuple[str, ...], charged: list[str], small: Callable[..., Config]
) -> None:
    config = made(small, *words)
    asked = RecordOrder(noise_multiplier=3.0, sample_rate=1.0, steps=1, grad_mode="hooks")
    protects = config.privacy.style.protects_records
    mechanism = record_mechanism(config, asked, 50) if protects else None
    order = RoundOrder(
        input_shape=(30,), num_classes=2, run="r", streams="s", phase=0,
        style=str(config.privacy.style), noise_std=1e3, client_noise=2.0, records=asked,
    )  # fmt: skip
    own = own_answer(config, order, mechanism, weights=10, count=50, shares=2)
    found = ClientAccounts(config).of(mechanism, own, NODE, "client-00001", 50)
    assert [account.ledger.ledger.path.stem for account in found] == charged
    for account in found:
        user = account.ledger.ledger.path.stem.endswith(".updates")
        target = config.privacy.user if user else config.privacy.sample
        assert account.budget.epsilon == target.target_epsilon


def test_a_run_that_a_site_cannot_afford_is_refused_without_a_number(
    small: Callable[..., Config], tmp_path: Path
) -> None:
    config = made(small, "privacy=sample", *ONE_STEP)
    asked = RecordOrder(noise_multiplier=1.0, sample_rate=1.0, steps=1, grad_mode="hooks")
    node = {"client-id": "north", "state-dir": str(tmp_path / "own"), "max-epsilon": 0.5}
    accounts = ClientAccounts(config)
    with pytest.raises(SiteRefused, match="budget") as refused:
        accounts.refuse_unaffordable("r", record_mechanism(config, asked, 50), 50, node)
    assert refused.value.told == "its own budget leaves no round"


def test_other_records_have_another_digest(small: Callable[..., Config]) -> None:
    config = made(small, "privacy=sample", *ONE_STEP)
    one, two = (Records(np.full((3, 2), v, np.float32), np.zeros(3, np.int64)) for v in (1, 2))
    assert ClientAccounts(config).data_digest(one, NODE, "a") != ClientAccounts(config).data_digest(
        two, NODE, "a"
    )
