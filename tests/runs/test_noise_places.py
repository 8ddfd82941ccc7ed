"""Who draws the noise of records: each client, or the server once for the sum, as whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dp_fedmed.config import Config, compose
from dp_fedmed.data import DataSet, Records, load_data
from dp_fedmed.errors import ConfigError
from dp_fedmed.launch import run_federation
from dp_fedmed.privacy import get_privacy_spent
from dp_fedmed.privacy.mechanisms.record_sums import RecordSums
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.run import server_run
from dp_fedmed.site import runtime

FULL = (
    *("training.batch_size=100000", "training.local_steps=1", "training.momentum=0"),
    "privacy.accountant=rdp",
)
SERVER = ("privacy=sample", "privacy.noise=server", *FULL, "training.weight_decay=0.01")
BOTH = ("privacy=hybrid", "privacy.noise=server", *FULL, "privacy.user.max_grad_norm=3")
Small = Callable[..., Config]


def report_of(run_dir: Path) -> Any:
    return json.loads((run_dir / "privacy_report.json").read_text())


def model_of(config: Config) -> dict[str, np.ndarray]:
    return load_file(run_federation(config).run_dir / "model.safetensors")


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoiseStream, "normal", lambda self, shape, *, std: np.zeros(shape))


def test_without_noise_the_servers_step_is_the_clients_own(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of different sizes: a sum over q·Σn is the mean of means, weighted by records."""
    without_noise(monkeypatch)
    skewed = "data.partition.name=size_skewed"
    here = model_of(small(*SERVER, skewed))
    there = model_of(small(*SERVER, skewed, "privacy.noise=client"))
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert value == pytest.approx(there[name], abs=2e-6), name
        assert value.any()


def test_one_noise_in_the_sum_where_each_client_had_its_own(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four clients, the noise in the mean is half as large."""
    words = (*SERVER, "training.weight_decay=0", "federation.num_rounds=1", "training.lr=1")
    fixed = ("privacy.sample.noise_multiplier=400", "privacy.sample.target_epsilon=null")
    spread = {}
    for place in ("server", "client"):
        moved = model_of(small(*words, *fixed, f"privacy.noise={place}"))
        with monkeypatch.context() as patch:
            without_noise(patch)
            exact = model_of(small(*words, *fixed, f"privacy.noise={place}"))
        spread[place] = np.std(np.concatenate([(moved[n] - exact[n]).ravel() for n in exact]))
    assert spread["client"] / spread["server"] == pytest.approx(2.0, rel=0.35)


def test_records_cost_one_release_per_round_and_the_server_is_promised_nothing(
    small: Small,
) -> None:
    fixed = ("privacy.sample.noise_multiplier=3", "privacy.sample.target_epsilon=null")
    report = report_of(run_federation(small(*SERVER, *fixed)).run_dir)
    (held,) = report["guarantees"]
    assert held["epsilon"] == get_privacy_spent(
        noise_multiplier=3.0, sample_rate=1.0, steps=2, delta=held["delta"]
    )
    assert held["noise_added_by"] == "the server"
    assert {c["noise_multiplier"] for c in held["clients"].values()} == {3.0}
    promised = {row["observer"]: row["record"] for row in report["observers"]}
    assert promised["server"] is None
    assert promised["model recipients"]["epsilon"] == held["epsilon"]
    assert "server is trusted" in report["trust_boundary"]


def test_one_noise_keeps_both_guarantees_each_with_its_own_sigma(small: Small) -> None:
    words = (*BOTH, "federation.sampler=all", "privacy.sample.max_grad_norm=0.5")
    fixed = ("privacy.sample.noise_multiplier=3", "privacy.user.noise_multiplier=1")
    none = ("privacy.sample.target_epsilon=null", "privacy.user.target_epsilon=null")
    report = report_of(run_federation(small(*words, *fixed, *none)).run_dir)
    by_unit = {held["unit"]: held for held in report["guarantees"]}
    assert by_unit["client"]["noise_multiplier"] == 1.0, "3 · 0.5 is less than 1 · 3"
    record = 1.0 * 3.0 / (0.5 * 1.01)
    (held,) = {c["noise_multiplier"] for c in by_unit["record"]["clients"].values()}
    assert held == pytest.approx(record), "what records have of the clients' noise"
    for unit, sigma in (("client", 1.0), ("record", record)):
        assert by_unit[unit]["epsilon"] == pytest.approx(
            get_privacy_spent(
                noise_multiplier=sigma, sample_rate=1.0, steps=2, delta=by_unit[unit]["delta"]
            )
        )


def exact_sums(
    config: Config, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[dict[str, np.ndarray], RecordSums]]:
    """What each round of a run is about to noise; the noise is off, and the models stay alike."""
    seen: list[tuple[dict[str, np.ndarray], RecordSums]] = []

    def release(self: RecordSums, total: dict[str, np.ndarray], streams: object, /) -> Any:
        exact = {name: value for name, value in total.items() if "/" not in name}
        seen.append((exact, self))
        return {name: np.zeros(value.shape) for name, value in exact.items()}

    with monkeypatch.context() as patch:
        patch.setattr(RecordSums, "release", release)
        for module in (server_run, runtime):
            patch.setattr(module, "load_data", lambda *_, **__: data)
        run_federation(config)
    return seen


@pytest.mark.parametrize("words", [SERVER, BOTH], ids=["sample", "hybrid"])
@pytest.mark.parametrize("value", [1e6, -1e6, 0.0, 1e38])
def test_one_record_moves_the_sum_by_the_sensitivity_that_is_noised(
    words: tuple[str, ...], value: float, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exact integers through the real run. Replacing is taking away and adding: twice Δ."""
    words = (*words, "federation.sampler=all", "federation.num_rounds=1")
    config, other = small(*words), small(*words)
    data = load_data(config.data, seed=config.seed)
    x = data.train.x.copy()
    x[3] = value
    changed = replace(data, train=Records(x, data.train.y, data.train.site))
    ((before, mechanism),) = exact_sums(config, data, monkeypatch)
    ((after, _),) = exact_sums(other, changed, monkeypatch)
    moved = sum(
        Fraction(int(step)) ** 2 for name in before for step in (after[name] - before[name]).ravel()
    )
    step = Fraction(mechanism.sums.grid.step)
    assert 0 < moved * step**2 <= (2 * Fraction(mechanism.sensitivity)) ** 2
    assert mechanism.std >= mechanism.record_noise * mechanism.sensitivity


def test_workers_and_their_number_change_no_bit(small: Small) -> None:
    words = (*BOTH, "federation.sampler=all", "privacy.noise_seed=1")
    alone, together = (model_of(small(*words, f"engine.workers={n}")) for n in (1, 2))
    assert all(np.array_equal(alone[name], together[name]) for name in alone)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*SERVER, "training.local_steps=2"], r"second step.*use training\.local_steps=1"),
        ([*SERVER, "training.local_steps=null"], r"use training\.local_steps=1"),
        ([*SERVER, "training.optimizer=adam"], r"training\.optimizer=adam.*use.*sgd"),
        ([*SERVER, "federation=local_only"], r"no server adds up.*privacy\.noise=client"),
        ([*SERVER, "federation=centralized"], r"no server adds up.*privacy\.noise=client"),
        ([*BOTH, "privacy.user.clipping=adaptive"], r"clipping=adaptive.*clipping=fixed"),
        (
            ["task=textures", "privacy=sample", "anomaly.mechanism=noisy_rows",
             "privacy.noise=server"],
            r"rows do not add up",
        ),
        (["anomaly.server_trusted=false"], r"say privacy\.noise=server instead of true"),
    ],
)  # fmt: skip
def test_noise_where_it_cannot_be_is_refused_with_the_key(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose(words)


def test_unequal_shares_of_records_are_refused_with_a_batch_that_works(small: Small) -> None:
    skewed = (*SERVER, "data.partition.name=size_skewed", "training.batch_size=20")
    with pytest.raises(ConfigError, match=r"training\.batch_size=20.*use training\.batch_size="):
        run_federation(small(*skewed))


def test_networks_of_which_rounding_would_add_too_much_are_refused(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dp_fedmed.assemble.mechanisms.MOST_ROUNDING", 1.0)
    with pytest.raises(ConfigError, match=r"rounding may add.*privacy\.noise=client"):
        run_federation(small(*SERVER))
