"""What a party's streams of a round depend on: all that makes it another round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_fedmed.config import compose
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.privacy.streams.noise import NoiseKey, Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams, round_digest

MODEL = [np.zeros(3)]
SECRETS = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32), client="a")


def test_any_other_round_party_or_phase_has_other_streams() -> None:
    def drawn(secrets: RoundStreams, step: int = 0) -> bytes:
        return secrets.noise(Purpose.RECORD_NOISE, MODEL, step).normal(4).tobytes()

    others = [
        replace(SECRETS, run="other"),
        replace(SECRETS, server_round=2),
        replace(SECRETS, digest=bytes(31) + b"1"),
        replace(SECRETS, client="b"),
        replace(SECRETS, phase=1),
    ]
    assert drawn(SECRETS) == drawn(replace(SECRETS))
    assert len({drawn(SECRETS), drawn(SECRETS, step=1), *map(drawn, others)}) == 7


def test_a_round_is_another_one_with_other_noise_in_force() -> None:
    settings = computed_from(compose(["privacy=sample"]))
    other = computed_from(compose(["privacy=sample", "training.lr=0.123"]))
    digests = {
        round_digest(MODEL, settings, {"noise_multiplier": 1.0}),
        round_digest(MODEL, settings, {"noise_multiplier": 2.0}),
        round_digest([np.ones(3)], settings, {"noise_multiplier": 1.0}),
        round_digest(MODEL, other, {"noise_multiplier": 1.0}),
    }
    assert len(digests) == 4


def test_a_digest_is_the_same_for_the_same_round() -> None:
    settings, order = {"seed": "1"}, {"noise_multiplier": 1.0, "clip_norm": 2.0}
    assert round_digest(MODEL, settings, order) == round_digest([np.zeros(3)], settings, order)
    assert len(round_digest(MODEL, settings, order)) == 32


def test_batches_are_drawn_without_looking_at_a_sum_and_noise_is_not() -> None:
    def drawn(step: int) -> bytes:
        return SECRETS.sampling(Purpose.BATCH, step).random(4).tobytes()

    assert drawn(0) == drawn(0) != drawn(1)
    again = SECRETS.selection(Purpose.BATCH, 0).generator.random(4).tobytes()
    assert again == drawn(0)
    sums = [[np.zeros(3)], [np.full(3, 1e-300)], [np.zeros(3), np.zeros(1)]]
    noise = {SECRETS.noise(Purpose.RECORD_NOISE, exact).normal(4).tobytes() for exact in sums}
    assert len(noise) == 3


def test_each_purpose_has_its_own_stream() -> None:
    noise = {SECRETS.noise(p, MODEL).normal(4).tobytes() for p in Purpose if p.is_noise}
    choice = {SECRETS.selection(p).normal(4).tobytes() for p in Purpose if not p.is_noise}
    assert len(noise | choice) == len(Purpose)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_choice_never_depends_on_data_and_noise_always_does(purpose: Purpose) -> None:
    wrong = SECRETS.selection if purpose.is_noise else lambda p: SECRETS.noise(p, MODEL)
    with pytest.raises(ValueError, match="private_digest"):
        wrong(purpose)


def test_what_a_ledger_holds_of_a_sum_needs_the_key_and_is_not_the_streams_digest() -> None:
    digest = SECRETS.inputs_digest(MODEL)
    assert digest == replace(SECRETS, server_round=9).inputs_digest(MODEL)
    assert digest != replace(SECRETS, key=NoiseKey.from_public_seed(2)).inputs_digest(MODEL)
    assert SECRETS.key.private_digest(MODEL).hex() not in digest
