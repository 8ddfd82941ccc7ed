"""Sums of clients' answers, noised as in a run, where an auditor meets them at their weakest.

Of shares, only those are there that the guarantee counts on: everybody else has dropped out, or
tells what it drew. Of noise that each client draws whole, one client's is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from dp_fedmed.assemble import server_mechanism
from dp_fedmed.config import Config
from dp_fedmed.config.quorum import quorum
from dp_fedmed.federation import PrivacyPlan
from dp_fedmed.learning.base import State
from dp_fedmed.planning.plan import make_sampler
from dp_fedmed.privacy.mechanisms import ClientUpdates, OwnNoise, RecordSums, ServerMechanism
from dp_fedmed.privacy.mechanisms.base import add, zeros_like
from dp_fedmed.privacy.streams import RoundStreams


def released(
    config: Config, plan: PrivacyPlan, answers: Mapping[str, State], secrets: RoundStreams
) -> dict[str, NDArray[Any]]:
    """These answers, summed and noised by the mechanism of a run."""
    weights = sum(value.size for value in next(iter(answers.values())).values())
    mechanism = server_mechanism(config, plan, make_sampler(config), weights=weights)
    if mechanism is None:
        raise ValueError("the server noises nothing here")
    if isinstance(mechanism, ClientUpdates) and mechanism.noised_by != "server":
        summed = {n: dict(_as_sum(mechanism, answer, n)) for n, answer in answers.items()}
        return _noised_by_clients(config, mechanism, summed, secrets)
    total = mechanism.empty(next(iter(answers.values())))
    for name, answer in answers.items():
        add(total, mechanism.bound(_as_sum(mechanism, answer, name), client=name))
    shown = mechanism.release(total, secrets)
    return {name: value * mechanism.expected_cohort for name, value in shown.items()}


def _as_sum(mechanism: ServerMechanism, answer: State, name: str) -> Mapping[str, NDArray[Any]]:
    """What a hostile client would send: as much as a server that adds up sums lets through."""
    if not isinstance(mechanism, RecordSums) or mechanism.client_norm is None:
        return answer
    if all(value.dtype.kind == "i" for value in answer.values()):
        return answer
    most = min(mechanism.client_norm, mechanism.max_norm * mechanism.records[name])
    steps, _ = mechanism.sums.bounded(list(answer.values()), most)
    return dict(zip(answer, steps, strict=True))


def _noised_by_clients(
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
