"""Reproducible streams."""

from __future__ import annotations

import numpy as np

from dp_fedmed.privacy.streams.reproducible import derive_seed, stream

PINNED = [462, 417, 835, 870]


def test_labels_do_not_run_into_each_other() -> None:
    seeds = {
        derive_seed(0, "a", "bc"),
        derive_seed(0, "ab", "c"),
        derive_seed(0, "abc"),
        derive_seed(1, "abc"),
        derive_seed(0, "a", 1),
        derive_seed(0, "a", "1"),
    }
    assert len(seeds) == 6


def test_the_same_labels_give_the_same_numbers() -> None:
    assert stream(3, "x", 1).integers(2**60) == stream(3, "x", 1).integers(2**60)


def test_streams_never_change() -> None:
    # A change here changes every split, partition and initial model of every user.
    assert derive_seed(0, "a", 1) == derive_seed(0, "a", np.int64(1))
    assert stream(0, "pin").integers(0, 1000, 4).tolist() == PINNED
