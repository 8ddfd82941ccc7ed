"""From a mechanism's name to a private statistic, with the public images that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.data.textures import normal_images
from dp_fedmed.learning.anomaly.coreset import greedy_k_center
from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian
from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from dp_fedmed.learning.anomaly.public_map import fit_public_map
from dp_fedmed.learning.anomaly.statistics import PrivateStatistic, State
from dp_fedmed.privacy.mechanisms.base import gaussian_std
from dp_fedmed.privacy.mechanisms.statistic import BOUND
from dp_fedmed.privacy.streams.noise import NoiseStream

DIMENSIONS: dict[str, int] = {"dp_gaussian": 64, "dp_prototypes": 32, "noisy_rows": 16}
NUM_PROTOTYPES = 64
# Never the seed of a run: these images are nobody's data.
_PUBLIC_SEED = 2**31


def public_images(n: int = 60, *, size: int, channels: int = 3) -> NDArray[np.uint8]:
    """Generated textures that anybody may see, grey or in colour.

    >>> public_images(3, size=32, channels=1).shape
    (3, 1, 32, 32)
    """
    coloured = normal_images(n, size, _PUBLIC_SEED).x
    if channels == 3:
        return coloured
    grey: NDArray[np.uint8] = np.rint(coloured.mean(axis=1, keepdims=True)).astype(np.uint8)
    return grey


def make_statistic(
    name: str, public_features: NDArray[Any], *, dimension: int | None = None, **options: Any
) -> PrivateStatistic:
    """A statistic whose public map and anchors come from the features of public images.

    Args:
        name: ``dp_gaussian`` or ``dp_prototypes``.
        public_features: (n, P, channels) features of `public_images`.
        dimension: of the public map; that of `DIMENSIONS` unless given, at most the channels.
        options: of `DPGaussian` or `DPPrototypes`; ``num_prototypes`` for the latter.
    """
    wanted = dimension or min(DIMENSIONS.get(name, 1), public_features.shape[-1])
    if name == "dp_gaussian":
        return DPGaussian(fit_public_map(public_features, wanted), **options)
    if name == "dp_prototypes":
        count = int(options.pop("num_prototypes", NUM_PROTOTYPES))
        public_map = fit_public_map(public_features, wanted)
        patches = public_map(public_features).reshape(-1, wanted)
        anchors = patches[greedy_k_center(patches, count)]
        return DPPrototypes(public_map, anchors, **options)
    raise ValueError(f"mechanism={name!r} is not known: use dp_gaussian or dp_prototypes")


def release(
    statistic: PrivateStatistic,
    clients: Sequence[NDArray[Any]],
    *,
    noise_multiplier: float,
    streams: Sequence[NoiseStream],
) -> State:
    """All steps with one noise on the sum over all clients: what a federation does, in one place.

    Args:
        statistic: what is released.
        clients: each client's features (n_i, P, channels).
        noise_multiplier: σ of each step; its cost is that of ``statistic.num_steps`` Gaussian
            releases of sensitivity 1. 0 adds no noise and protects nobody.
        streams: secret randomness, one stream a step.
    """
    state = statistic.initial_state()
    count = sum(len(features) for features in clients)
    for stream in streams[: statistic.num_steps]:
        total = np.sum([statistic.total([features], state)[0] for features in clients], axis=0)
        std = gaussian_std(noise_multiplier=noise_multiplier, sensitivity=BOUND)
        noise = stream.normal(total.shape, std=std)
        state = statistic.update(state, (total + noise) / count, noise_std=std / count)
    return state
