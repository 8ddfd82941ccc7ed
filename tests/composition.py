"""Hydra takes longer to compose settings than a tiny run takes to train: so it does so once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser


def remembering(compose_anew: Callable[..., Any]) -> Callable[..., Any]:
    """`hydra.compose` with a memory: runs that differ in `run_dir` alone share a tree."""
    made: dict[tuple[str, ...], Any] = {}

    def compose(name: str, overrides: list[str], *, return_hydra_config: bool = False) -> Any:
        if return_hydra_config:  # files of a test's own, which another test may write anew
            return compose_anew(name, overrides=overrides, return_hydra_config=True)
        words = tuple(word for word in overrides if not word.startswith("run_dir="))
        if words not in made:
            made[words] = compose_anew(name, overrides=list(words))
        tree = copy.deepcopy(made[words])
        for word in overrides:
            if word.startswith("run_dir="):
                tree.run_dir = OverridesParser.create().parse_override(word).value()
        return tree

    return compose
