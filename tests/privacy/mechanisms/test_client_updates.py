"""Client-level privacy through the real strategy: bounded influence, noise as claimed, no leaks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy import stats

from dp_fedmed.config import Config, SamplerName, compose
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.nodes import wait_for_nodes
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.rounds import RoundSettings
from dp_fedmed.federation.strategy import DPStrategy
from dp_fedmed.planning.plan import make_plan, make_sampler
from dp_fedmed.privacy.mechanisms.client_updates import ClientUpdates
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams, round_digest
from dp_fedmed.run.phases import limits_of
from tests.federation.observed import Kept, Paid
from tests.runs import apps

C, CLIENTS = 2.0, 5
LARGE = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(7, np.float32)}


def config_with(sampler: SamplerName, **user: object) -> Config:
    config = compose(
        [
            *("privacy=user", f"federation.num_clients={CLIENTS}", f"federation.sampler={sampler}"),
            *("privacy.user.noise_multiplier=1.0", f"privacy.user.max_grad_norm={C}"),
            *("federation.num_rounds=1", "federation.evaluate_every=0", "run_dir=/x"),
        ]
    )
    settings = dataclasses.replace(config.privacy.user, target_epsilon=None, **user)  # type: ignore[arg-type]
    return config.replace(privacy=dataclasses.replace(config.privacy, user=settings))


def released(
    config: Config,
    answer: apps.Answer,
    *,
    key: NoiseKey | None = None,
    noise: bool = True,
    rounds: int = 1,
    left_out: int | None = None,
) -> list[model_arrays.State]:
    """The models after each round of the real strategy; noise may be switched off."""
    grid = LocalGrid(apps.app_of(answer), num_clients=CLIENTS, workers=1)
    sampler = make_sampler(config)
    plan = make_plan(config, records={}, sampler=sampler, is_private=True)
    assert plan.user_event is not None
    mechanism = ClientUpdates(
        plan.user_event,
        max_norm=config.privacy.user.max_grad_norm,
        expected_cohort=sampler.expected(CLIENTS),
    )
    if not noise:
        mechanism.noise_multiplier = 0.0
    secret = key or NoiseKey.generate()
    nodes = {n: v.node_id for n, v in wait_for_nodes(grid, expected=None, timeout=1).items()}
    if left_out is not None:
        del nodes[f"client-{left_out:05d}"]
    models: list[model_arrays.State] = []

    def streams(server_round: int, model: model_arrays.State) -> RoundStreams:
        settings = computed_from(config)
        digest = round_digest(list(model.values()), settings, mechanism.order())
        return RoundStreams(secret, "run", server_round, digest)

    strategy = DPStrategy(
        RoundSettings(num_rounds=rounds, evaluate_every=0),
        nodes=nodes,
        sampler=sampler,
        seed=0,
        mechanism=mechanism,
        ledger=Paid(PrivacyGuard(limits_of(config), plan), streams),
        observer=Kept(lambda record: models.append(model_arrays.from_record(strategy.arrays))),
    )
    strategy.start(grid, model_arrays.to_record(LARGE), num_rounds=rounds)
    return models


def flat(state: model_arrays.State) -> np.ndarray:
    return np.concatenate([value.ravel().astype(np.float64) for value in state.values()])


def honest(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    rng = np.random.default_rng(number)
    scale = 0.05 * (number + 1)
    return apps.good(
        {n: rng.normal(0, scale, v.shape).astype(np.float32) for n, v in model.items()}
    )


def hostile(kind: str) -> apps.Answer:
    def answer(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        content = honest(number, model)
        if number != CLIENTS - 1:
            return content
        update = model_arrays.from_record(content["arrays"])  # type: ignore[arg-type]
        if kind == "scaled":
            update = {n: v * np.float32(1e6) for n, v in update.items()}
        elif kind == "huge":
            update = {n: np.full_like(v, 1e38) for n, v in update.items()}
        elif kind == "nan":
            update = {n: np.full_like(v, np.nan) for n, v in update.items()}
        elif kind == "float64":
            update = {n: v.astype(np.float64) * 1e9 for n, v in update.items()}
        return apps.good(update, examples=1e6 if kind == "many examples" else 1.0)

    return answer


@pytest.mark.parametrize("sampler", [SamplerName.all, SamplerName.poisson, SamplerName.fixed])
@pytest.mark.parametrize("kind", ["honest", "scaled", "huge", "nan", "float64", "many examples"])
def test_one_client_moves_the_sum_by_at_most_c(sampler: SamplerName, kind: str) -> None:
    """Noise off: with the client whatever it sends, against without it."""
    config = config_with(sampler)
    with_it = flat(released(config, hostile(kind), noise=False)[-1])
    without = flat(released(config, honest, noise=False, left_out=CLIENTS - 1)[-1])
    expected = make_sampler(config).expected(CLIENTS)
    assert np.linalg.norm(with_it - without) * expected <= C * (1 + 1e-5)


def test_a_client_within_c_is_not_changed() -> None:
    def small(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        return apps.good({n: np.full_like(v, 1e-3 * number) for n, v in model.items()})

    moved = flat(released(config_with(SamplerName.all), small, noise=False)[-1])
    assert np.allclose(moved, 1e-3 * np.mean(range(CLIENTS)), atol=1e-7)


def test_the_sum_is_divided_by_the_expected_cohort_not_by_who_came() -> None:
    def same(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        return apps.good({n: np.full_like(v, 1e-3) for n, v in model.items()})

    config = config_with(SamplerName.poisson)
    config = config.replace(federation=dataclasses.replace(config.federation, sample_rate=0.5))
    expected = make_sampler(config).expected(CLIENTS)
    models = [flat(LARGE), *(flat(m) for m in released(config, same, noise=False, rounds=20))]
    came = np.diff([model.mean() for model in models]) * expected / 1e-3
    assert np.allclose(came, came.round(), atol=1e-3)
    assert len(set(came.round())) > 2, "cohorts of several sizes"


def nothing(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    return apps.good({n: np.zeros_like(v) for n, v in model.items()})


def test_released_noise_has_the_scale_that_is_accounted() -> None:
    """χ² on what the real strategy releases when every update is zero."""
    config = config_with(SamplerName.all)
    noise = flat(released(config, nothing)[-1]) * CLIENTS / (1.0 * C)
    statistic, n = float((noise**2).sum()), noise.size
    assert 1e-4 < stats.chi2.cdf(statistic, n) < 1 - 1e-4


def test_noise_is_not_repeated_across_rounds_or_runs() -> None:
    config = dataclasses.replace(config_with(SamplerName.all))
    key = NoiseKey.generate()
    models = released(config, nothing, key=key, rounds=4)
    steps = [flat(b) - flat(a) for a, b in pairwise(models)]
    steps.append(flat(released(config, nothing)[-1]))
    correlation = np.corrcoef(steps) - np.eye(len(steps))
    assert np.abs(correlation).max() < 5 / math.sqrt(steps[0].size)


def test_the_same_inputs_give_the_same_release_and_others_do_not() -> None:
    config, key = config_with(SamplerName.all), NoiseKey.generate()
    first = flat(released(config, honest, key=key)[-1])
    assert np.array_equal(first, flat(released(config, honest, key=key)[-1]))

    def shifted(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        content = honest(number, model)
        update = model_arrays.from_record(content["arrays"])  # type: ignore[arg-type]
        return apps.good({n: v * np.float32(1 + 1e-6) for n, v in update.items()})

    other = flat(released(config, shifted, key=key)[-1]) - first
    assert np.linalg.norm(other) > 0.5 * C * math.sqrt(first.size) / CLIENTS


def test_an_empty_cohort_releases_noise() -> None:
    config = config_with(SamplerName.poisson)
    federation = dataclasses.replace(config.federation, sample_rate=1e-9)
    noise = flat(released(config.replace(federation=federation), honest)[-1])
    assert np.std(noise) > 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["federation.min_clients=2"], "federation.min_clients=2 contradicts privacy.style=user"),
        (["federation.weighting=examples"], "federation.weighting=uniform"),
        (["privacy.user.target_epsilon=null"], "privacy.user.target_epsilon"),
        (["federation.max_participations=3"], "record-level"),
    ],
)
def test_what_breaks_the_guarantee_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["privacy=user", *overrides])
    assert said in str(caught.value)


def test_calibration_meets_the_target_for_every_sampler() -> None:
    make: Callable[[SamplerName], Config] = lambda name: compose(  # noqa: E731
        [
            *("privacy=user", "federation.num_clients=100", "federation.num_rounds=30"),
            *(f"federation.sampler={name}", "privacy.user.target_epsilon=4"),
            f"federation.sample_rate={1.0 if name is SamplerName.all else 0.2}",
        ]
    )
    sigmas = {}
    for name in SamplerName:
        config = make(name)
        plan = make_plan(config, records={}, sampler=make_sampler(config), is_private=True)
        guard = PrivacyGuard(limits_of(config), plan)
        for server_round in range(30):
            guard.charge(server_round, [])
        assert 3.9 < guard.epsilons()["user"] <= 4.0
        with pytest.raises(Exception, match="budget"):
            guard.charge(31, [])
        assert plan.user_event is not None
        sigmas[name] = plan.user_event.noise_multiplier
    assert sigmas[SamplerName.poisson] < sigmas[SamplerName.fixed] == sigmas[SamplerName.all]
