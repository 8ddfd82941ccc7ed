"""Builds that are broken on purpose: each is caught by the audit, or by a property test.

The breaks are made in the real code. docs/audit.md has the list of what caught which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from dp_fedmed.config import Config, SamplerName
from dp_fedmed.evidence.audit import Verdict
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.replies import ReplyReader
from dp_fedmed.learning.networks import dp_sgd
from dp_fedmed.learning.networks.dp_sgd import KeyedDPOptimizer
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.privacy.mechanisms import private_sum
from dp_fedmed.privacy.mechanisms.client_updates import ClientUpdates
from dp_fedmed.privacy.mechanisms.record_sums import RecordSums
from dp_fedmed.privacy.streams.noise import NoiseKey, Purpose, StreamId
from dp_fedmed.privacy.streams.rounds import RoundStreams
from tests.evidence.test_audit import client_level, record_level, whole_run
from tests.privacy.mechanisms import test_client_updates as properties

Patch = pytest.MonkeyPatch


def quarter_record_noise(patch: Patch) -> None:
    step = KeyedDPOptimizer.noisy_step

    def broken(self: KeyedDPOptimizer, *arguments: Any) -> None:
        right = self.mechanism
        self.mechanism = replace(right, noise_multiplier=right.noise_multiplier / 4.0)
        step(self, *arguments)
        self.mechanism = right

    patch.setattr(KeyedDPOptimizer, "noisy_step", broken)


def unclipped_records(patch: Patch) -> None:
    add = PerSampleGradients.add

    def broken(self: PerSampleGradients, optimizer: KeyedDPOptimizer, *batch: Any) -> torch.Tensor:
        right = optimizer.mechanism
        optimizer.mechanism = replace(right, max_grad_norm=1e30)
        losses = add(self, optimizer, *batch)
        optimizer.mechanism = right
        return losses

    patch.setattr(PerSampleGradients, "add", broken)


def everyone_in_a_poisson_batch(patch: Patch) -> None:
    def broken(n: int, plan: Any, rng: Any, **_: Any) -> Iterator[torch.Tensor]:
        yield from torch.arange(n).split(plan.physical_batch_size)

    patch.setattr(dp_sgd, "poisson_batch", broken)


def accountant_reset_each_round(patch: Patch) -> None:
    record = PrivacyGuard.record

    def broken(self: PrivacyGuard, charge: Any) -> None:
        self.accountant = self.plan.accountant(
            method=self.limits.method,
            sample_epsilon=self.limits.sample_epsilon,
            user_epsilon=self.limits.user_epsilon,
        )
        record(self, charge)

    patch.setattr(PrivacyGuard, "record", broken)


def quarter_client_noise(patch: Patch) -> None:
    release = ClientUpdates.release

    def broken(self: ClientUpdates, total: Any, streams: RoundStreams) -> Any:
        self.noise_multiplier /= 4.0
        average = release(self, total, streams)
        self.noise_multiplier *= 4.0
        return average

    patch.setattr(ClientUpdates, "release", broken)


def quarter_noise_of_the_sum(patch: Patch) -> None:
    std = RecordSums.std.fget  # type: ignore[attr-defined]
    patch.setattr(RecordSums, "std", property(lambda self: std(self) / 4.0))


def unclipped_clients(patch: Patch) -> None:
    patch.setattr(private_sum, "_below", lambda bound, dimension: 1e6 * bound)


RECORD = record_level
CLIENT = client_level
FULL = ("federation.sampler=all",)
CAUGHT_BY_AUDIT: list[tuple[Callable[[Patch], None], Callable[..., Config], list[str], int]] = [
    (quarter_record_noise, RECORD, [], 1500),
    (unclipped_records, RECORD, [], 1500),
    (
        everyone_in_a_poisson_batch,
        RECORD,
        ["training.batch_size=7", "training.local_steps=10", "privacy.sample.noise_multiplier=2"],
        1500,
    ),
    (
        accountant_reset_each_round,
        RECORD,
        ["federation.num_rounds=25", "privacy.sample.noise_multiplier=5"],
        1500,
    ),
    (
        quarter_noise_of_the_sum,
        RECORD,
        ["privacy.noise=server", "training.batch_size=100000", "training.local_steps=1"],
        1500,
    ),
    (quarter_client_noise, CLIENT, [*FULL], 800),
    (unclipped_clients, CLIENT, [*FULL], 500),
]


@pytest.mark.parametrize(
    ("breaks", "level", "overrides", "count"),
    CAUGHT_BY_AUDIT,
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_audit_catches(
    breaks: Callable[[Patch], None],
    level: Callable[..., Config],
    overrides: list[str],
    count: int,
    monkeypatch: Patch,
) -> None:
    breaks(monkeypatch)
    found = whole_run(level(*overrides), count=count)
    assert found.verdict is Verdict.exceeded, found.statement


@contextmanager
def caught() -> Iterator[None]:
    """A property test must fail on the broken build."""
    with pytest.raises(AssertionError):
        yield


def test_noise_reused_across_rounds_is_caught_by_the_correlation_test(monkeypatch: Patch) -> None:
    """The audit's scores, a sum over rounds, have no more signal then: it cannot see this one."""

    def broken(self: RoundStreams, purpose: Purpose, step: int, private: bytes | None) -> StreamId:
        noise = bytes(32) if purpose.is_noise else None
        return StreamId(
            run="run",
            phase=0,
            purpose=purpose,
            round_num=0,
            public_digest=bytes(32),
            private_digest=noise,
        )

    monkeypatch.setattr(RoundStreams, "_id", broken)
    with caught():
        properties.test_noise_is_not_repeated_across_rounds_or_runs()
    with caught():
        properties.test_the_same_inputs_give_the_same_release_and_others_do_not()


def test_weights_by_examples_are_caught_by_the_sensitivity_test(monkeypatch: Patch) -> None:
    """Every canary client has one record, so the audit cannot see this one."""
    contribution, bound = ReplyReader._contribution, ClientUpdates.bound
    weight = [1]

    def noted(self: ReplyReader, *arguments: Any) -> Any:
        found = contribution(self, *arguments)
        weight[0] = int(found[1]) if found is not None else 0
        return found

    def broken(self: ClientUpdates, update: Any, client: str = "") -> Any:
        bounded = bound(self, update, client=client)
        return {name: weight[0] * value for name, value in bounded.items()}

    monkeypatch.setattr(ReplyReader, "_contribution", noted)
    monkeypatch.setattr(ClientUpdates, "bound", broken)
    with caught():
        properties.test_one_client_moves_the_sum_by_at_most_c(SamplerName.all, "many examples")


def test_a_public_key_is_caught_by_the_correlation_test(monkeypatch: Patch) -> None:
    """A seed in the configuration is told by the audit; see test_audit."""
    monkeypatch.setattr(NoiseKey, "generate", lambda: NoiseKey.from_public_seed(0))
    with caught():
        properties.test_noise_is_not_repeated_across_rounds_or_runs()


def test_the_property_tests_hold_on_the_real_build() -> None:
    """What `caught` relies on: they fail for the break, not for the way they are called."""
    properties.test_noise_is_not_repeated_across_rounds_or_runs()
    properties.test_the_same_inputs_give_the_same_release_and_others_do_not()
    properties.test_one_client_moves_the_sum_by_at_most_c(SamplerName.all, "many examples")
