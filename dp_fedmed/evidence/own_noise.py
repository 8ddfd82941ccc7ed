"""Releases that clients noise themselves, as an auditor meets them where they are weakest.

Of shares, only those are there that the guarantee counts on: everybody else has dropped out, or
tells what it drew. Of noise that each client draws whole, one client's is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from dp_fedmed.config import Config
from dp_fedmed.config.quorum import quorum
from dp_fedmed.learning.base import State
from dp_fedmed.privacy.mechanisms import ClientUpdates, OwnNoise
from dp_fedmed.privacy.mechanisms.base import add, zeros_like
from dp_fedmed.privacy.streams import RoundStreams


def noised_by_clients(
    config: Config,
    mechanism: ClientUpdates,
    answers: Mapping[str, State],
    secrets: RoundStreams,
) -> dict[str, NDArray[Any]]:
    """The sum of clients' answers with the least noise that the guarantee allows.

    Args:
        config: of the run.
        mechanism: bounds the answers.
        answers: updates, or sums in steps of the grid.
        secrets: where the noise comes from.
    """
    total = zeros_like(next(iter(answers.values())))
    for answer in answers.values():
        is_sum = all(value.dtype.kind == "i" for value in answer.values())
        add(total, answer if is_sum else mechanism.clipped(answer)[0])
    shares = quorum(config).honest if mechanism.noised_by == "shares" else 1
    grid = mechanism.sums.grid
    own = OwnNoise(grid=grid, std=mechanism.std, shares=shares)
    exact = list(total.values())
    for number in range(shares):
        drawn = replace(secrets, client=f"client-{number}")
        total = own.add(total, drawn.noise(mechanism.purpose, exact))
    return {name: grid.values(value) for name, value in total.items()}
