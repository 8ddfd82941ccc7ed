"""What a client's answer gives away of its patches."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.data import Records
from dp_fedmed.evidence import bank_reconstruction
from dp_fedmed.evidence.bank_reconstruction import chosen_images, look_into_answer, mosaics
from dp_fedmed.evidence.reconstruction import (
    compose_for,
)


def test_a_memory_bank_holds_patches_as_they_are_and_a_noised_statistic_holds_none() -> None:
    small = (
        "task=textures",
        "data.num_records=60",
        "data.image_size=32",
    )
    small += ("federation.num_clients=3", "anomaly.coreset_size=300")
    rows = {}
    for style in ("none", "sample, ε = 8"):
        config = compose_for(small, bank_reconstruction.STYLES[style])
        rows[style], seen = look_into_answer(config, style)
    bank, noised = rows["none"], rows["sample, ε = 8"]
    assert bank.given_away.sum() >= 300
    assert bank.nearest < bank.held_out
    assert noised.given_away.sum() == 0
    assert noised.numbers < bank.numbers
    images = seen.records.x / 255.0
    shown = mosaics(images, bank.given_away)
    assert (shown == images).all(axis=1).mean() == pytest.approx(bank.given_away.mean(), abs=0.02)


def test_the_images_shown_are_those_that_gave_most_away_of_each_category_in_turn() -> None:
    records = Records(
        np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.int64), np.array([5, 5, 9, 9])
    )
    given_away = np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]], bool)
    assert chosen_images(records, given_away, 3).tolist() == [1, 3, 0]


def test_a_mosaic_shows_the_patches_that_were_found_and_no_more() -> None:
    images = np.ones((1, 1, 4, 4))
    shown = mosaics(images, np.array([[True, False, False, False]]))[0, 0]
    assert (shown[:2, :2] == 1.0).all()
    assert (shown != 1.0).sum() == 12
