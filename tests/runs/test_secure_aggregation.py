"""Whole runs whose server learns sums only: what it sees, who may drop out, what is unmasked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load_file
from scipy import stats

from dp_fedmed.config import Config, compose
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.federation.secure_aggregation.attempt import KEYS, MASKED, SHARES, UNMASK
from dp_fedmed.launch import run_federation, run_locally
from dp_fedmed.privacy.mechanisms.own_noise import OwnNoise
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.results import RunResult

Small = Callable[..., Config]
ONE_STEP = ("training.batch_size=100000", "training.local_steps=1", "privacy.accountant=rdp")
NONE = ("federation.secure_aggregation=true",)
SAMPLE = ("privacy=sample", "privacy.noise=shares", *ONE_STEP)
USER = ("privacy=user", "privacy.noise=shares", "privacy.accountant=rdp")
HYBRID = ("privacy=hybrid", "privacy.noise=shares", *ONE_STEP)
STAGES = (KEYS, SHARES, "train", UNMASK)


class Watched(LocalGrid):
    """Keeps every byte that reaches the server, and loses the answers that a test says."""

    seen: list[Message]
    lost: Callable[[Message, int], bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen, self.lost = [], lambda message, client: False

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        batch = list(messages)
        for message, reply in zip(batch, super().send_and_receive(batch), strict=True):
            client = message.metadata.dst_node_id - 100
            if self.lost(message, client):
                yield Message(Error(0, "gone"), reply_to=message)
            else:
                self.seen.append(reply)
                yield reply


def watched_run(
    config: Config, lost: Callable[[Message, int], bool] | None = None
) -> tuple[RunResult, Watched]:
    grids: list[Watched] = []

    def make(*args: Any, **kwargs: Any) -> Watched:
        grids.append(Watched(*args, **kwargs))
        if lost is not None:
            grids[0].lost = lost
        return grids[0]

    return run_locally(config, LogDisplay(), make), grids[0]


def model_of(run_dir: Path) -> dict[str, np.ndarray]:
    return load_file(run_dir / "model.safetensors")


def report_of(run_dir: Path) -> Any:
    return json.loads((run_dir / "privacy_report.json").read_text())


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoiseStream, "normal", lambda self, shape, *, std: np.zeros(shape))


def alike(one: dict[str, np.ndarray], other: dict[str, np.ndarray], within: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value == pytest.approx(other[name], abs=within), name


@pytest.mark.parametrize(
    "words", [NONE, SAMPLE, USER, HYBRID], ids=["none", "sample", "user", "hybrid"]
)
def test_masks_cancel(
    words: tuple[str, ...], small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, the model is that of the same run without masks."""
    without_noise(monkeypatch)
    skewed = "data.partition.name=size_skewed"
    masked = run_federation(small(*words, skewed))
    plain = [w for w in words if "secure_aggregation" not in w]
    open_run = run_federation(small(*(w.replace("shares", "server") for w in plain), skewed))
    alike(model_of(masked.run_dir), model_of(open_run.run_dir), 1e-6)


@pytest.mark.parametrize("words", [NONE, USER], ids=["none", "user"])
def test_each_answer_that_reaches_the_server_is_uniform(
    words: tuple[str, ...], small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte of every masked vector, of clients whose contributions are all zero but a few."""
    result, grid = watched_run(small(*words, "model._target_=dp_fedmed.models.MLP"))
    assert result.stopped == "completed"
    vectors = [
        np.frombuffer(array.data[-8 * np.prod(array.shape) :], np.uint8)
        for reply in grid.seen
        if not reply.has_error()
        for record in reply.content.array_records.values()
        for array in record.values()
    ]
    assert len(vectors) == 4 * result.rounds
    for vector in vectors:
        counts = np.bincount(vector, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    told = {
        key
        for reply in grid.seen
        for key in (*reply.content.array_records, *reply.content.metric_records)
    }
    assert told <= {"arrays", "metrics"}
    for reply in grid.seen:
        for metrics in reply.content.metric_records.values():
            if "arrays" in reply.content.array_records:
                assert set(reply.content.array_records["arrays"]) == {MASKED}
                assert "train_loss" not in metrics, "it would be of one client"


def test_the_test_for_uniform_bytes_can_fail(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dp_fedmed.federation.secure_aggregation.client.add_mask", lambda *_: None)
    _, grid = watched_run(small(*USER, "federation.num_rounds=1"))
    (array,) = next(
        r.content.array_records["arrays"].values() for r in grid.seen if r.content.array_records
    )
    counts = np.bincount(np.frombuffer(array.data[128:], np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue < 1e-6


@pytest.mark.parametrize("words", [SAMPLE, USER, HYBRID], ids=["sample", "user", "hybrid"])
def test_what_the_server_unmasks_has_its_noise(
    words: tuple[str, ...], small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact sum is never there: what is unmasked differs from it by all clients' shares."""
    shares: list[np.ndarray] = []
    stds: list[tuple[float, int, float]] = []
    add, totals = OwnNoise.add, []

    def keep(self: OwnNoise, exact: Any, stream: Any) -> Any:
        noised = add(self, exact, stream)
        shares.append(np.concatenate([(noised[n] - exact[n]).ravel() for n in exact]))
        stds.append((self.std, self.shares, self.grid.step))
        exacts.append(np.concatenate([np.ravel(exact[n]) for n in exact]))
        return noised

    exacts: list[np.ndarray] = []
    monkeypatch.setattr(OwnNoise, "add", keep)
    from dp_fedmed.federation.secure_aggregation.attempt import Attempt

    total = Attempt.total
    monkeypatch.setattr(Attempt, "total", lambda self: totals.append(total(self)) or totals[-1])
    config = small(*words, "federation.num_rounds=1", "federation.num_clients=6")
    assert run_federation(config).stopped == "completed"
    (unmasked,) = totals
    assert np.array_equal(unmasked, np.sum(exacts, axis=0) + np.sum(shares, axis=0))
    ((std, honest, step),) = set(stds)
    assert honest == 6 - 1 - 1, "a fifth may drop out, one may collude"
    noise = np.sum(shares, axis=0) * step
    assert noise.std() == pytest.approx(std * np.sqrt(6 / honest), rel=0.25)
    for share in shares:
        assert (share * step).std() == pytest.approx(std / np.sqrt(honest), rel=0.35)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("words", [NONE, SAMPLE], ids=["none", "sample"])
def test_one_that_drops_out_at_any_stage_contributes_nothing_and_the_rest_is_exact(
    words: tuple[str, ...], stage: str, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    many = ("federation.num_clients=6", "federation.num_rounds=1", "federation.max_dropouts=2")

    def lost(message: Message, client: int) -> bool:
        return message.metadata.message_type == stage and client in (1, 4)

    result, _ = watched_run(small(*words, *many), lost)
    assert result.stopped == "completed"
    plain = [w for w in words if "secure_aggregation" not in w]
    away = stage != UNMASK  # who only stays away from unmasking is in the sum
    open_run, _ = watched_run(
        small(*(w.replace("shares", "server") for w in plain), *many[:2]),
        lambda message, client: (
            away and message.metadata.message_type == "train" and client in (1, 4)
        ),
    )
    alike(model_of(result.run_dir), model_of(open_run.run_dir), 1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_too_many_that_drop_out_cost_the_round_and_it_can_be_resumed(
    stage: str, small: Small
) -> None:
    words = (*SAMPLE, "privacy.noise_seed=3")
    config = small(*words)
    reference = run_federation(small(*words))

    def lost(message: Message, client: int) -> bool:
        return message.metadata.message_type == stage and client in (1, 2)

    result, _ = watched_run(config, lost)
    assert result.stopped.startswith("round 1: ")
    assert "max_dropouts" in result.stopped
    assert report_of(result.run_dir)["guarantees"][0]["epsilon"] > 0.0, "it is charged"
    again = run_federation(compose([f"run_dir={result.run_dir}", "resume=last"]))
    assert again.stopped == "completed"
    alike(model_of(again.run_dir), model_of(reference.run_dir), 0.0)
    assert report_of(again.run_dir)["guarantees"] == report_of(reference.run_dir)["guarantees"]


def test_workers_and_masks_change_no_bit(small: Small) -> None:
    words = (*HYBRID, "privacy.noise_seed=1")
    one, two = (
        model_of(run_federation(small(*words, f"engine.workers={n}")).run_dir) for n in (1, 2)
    )
    alike(one, two, 0.0)


@pytest.mark.parametrize("words", [SAMPLE, HYBRID], ids=["sample", "hybrid"])
def test_the_server_is_promised_what_the_others_are(words: tuple[str, ...], small: Small) -> None:
    report = report_of(run_federation(small(*words)).run_dir)
    server, others = report["observers"]
    assert {k: v for k, v in server.items() if k != "observer"} == {
        k: v for k, v in others.items() if k != "observer"
    }
    assert report["guarantees"][0]["noise_added_by"] == "all clients, a share each"
    assert "at most 1 of a round's 4 clients" in report["trust_boundary"]
    assert "is not covered" in report["trust_boundary"]


def test_noise_of_whole_clients_by_each_of_them(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local DP: each client's answer has all of σC, and the sum √K times that."""
    words = ("privacy=user", "privacy.noise=client", "privacy.user.target_epsilon=null")
    fixed = ("privacy.user.noise_multiplier=50", "federation.num_rounds=1")
    moved = model_of(run_federation(small(*words, *fixed)).run_dir)
    report = report_of(run_federation(small(*words, *fixed)).run_dir)
    assert report["observers"][0]["client"] == report["observers"][1]["client"] is not None
    with monkeypatch.context() as patch:
        without_noise(patch)
        exact = model_of(run_federation(small(*words, *fixed)).run_dir)
    spread = np.std(np.concatenate([(moved[n] - exact[n]).ravel() for n in exact]))
    assert spread == pytest.approx(50.0 * np.sqrt(4) / 4, rel=0.3)


def test_a_client_pays_for_itself_where_it_draws_the_noise(small: Small) -> None:
    result = run_federation(small(*USER))
    own = result.run_dir / "private" / "clients" / "client-00000.updates.jsonl"
    kinds = [json.loads(line)["kind"] for line in own.read_text().splitlines()]
    assert kinds == ["CHARGE", "ANSWER"] * 2
    assert not list(own.parent.glob("*.masking")), "nobody can unmask the last answers any more"
