"""Reproducible streams."""

from __future__ import annotations

from dp_fedmed.randomness import derive_seed, stream


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
