"""An anomaly detector as named arrays: how they begin, what they mean, and how they score images.

The public map travels with them, so that every client maps patches as the server does; the frozen
backbone does not, and must be the same everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.data.textures import normal_images
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.anomaly.bank import MemoryBank, coreset_size, greedy_k_center
from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian
from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from dp_fedmed.learning.anomaly.features import FeatureCache, PatchFeatures
from dp_fedmed.learning.anomaly.noisy_rows import RowsModel
from dp_fedmed.learning.anomaly.statistics import (
    AnomalyModel,
    PrivateStatistic,
    PublicMap,
    fit_public_map,
    step_of,
)
from dp_fedmed.models.backbones import make_backbone

State = dict[str, NDArray[Any]]
#: Features (n, P, channels) to scores of images (n,) and of patches (n, P).
Scorer = Callable[[NDArray[Any]], tuple[NDArray[np.float64], NDArray[np.float32]]]

BANK_DIMENSION = 128
#: Of the public map of each private mechanism.
DIMENSIONS: dict[str, int] = {"dp_gaussian": 64, "dp_prototypes": 32, "noisy_rows": 16}
NUM_PROTOTYPES = 64
_PUBLIC_SEED = 2**31  # never the seed of a run: these images are nobody's data
#: Backbones that tell defects by contrast as much as by kind: their banks keep the norm of patches.
#: On `textures`, that takes pixel AUROC from 0.75 to 0.98. Learnt features do as well without it.
BY_CONTRAST = ("filters",)
OFFSET, MATRIX, BANK = "map_offset", "map_matrix", "bank"
BANK_MECHANISM, ROWS_MECHANISM = "bank", "noisy_rows"


@dataclass(frozen=True, kw_only=True)
class DetectorSettings:
    """What a detector is made of.

    Attributes:
        mechanism: `bank` without privacy, else what is released of normal images.
        grid: patches along each side of an image.
        dimension: of the public map; by the mechanism unless given.
        coreset_size: rows of a bank, or their share of all patches (`coreset_ratio`).
        neighbours: that a bank's score looks at.
        rows_per_image: that `noisy_rows` draws.
        data_name: for messages.
    """

    mechanism: str
    backbone: str
    weights: str | None = None
    layers: Sequence[str] | None = None
    grid: int | None = None
    dimension: int | None = None
    coreset_size: int | None = None
    coreset_ratio: float | None = 0.1
    neighbours: int = 9
    rows_per_image: int = 1
    seed: int = 0
    data_name: str = "data"


class Detector:
    """The features and the arrays of one detector: a memory bank, or a private statistic."""

    def __init__(self, settings: DetectorSettings) -> None:
        self.settings = settings
        self.is_bank = settings.mechanism == BANK_MECHANISM
        self.has_rows = self.is_bank or settings.mechanism == ROWS_MECHANISM

    @functools.cached_property
    def features(self) -> PatchFeatures:
        """Images to patch features."""
        s = self.settings
        backbone = make_backbone(s.backbone, weights=s.weights, layers=s.layers, seed=s.seed)
        return PatchFeatures(backbone, grid=s.grid)

    @functools.cached_property
    def cache(self) -> FeatureCache:
        """The same, kept between rounds."""
        return FeatureCache(self.features)

    def initial(self, input_shape: tuple[int, ...], num_images: int) -> State:
        """The arrays before anything is learnt: the public map, and an empty bank or statistic.

        `num_images` is that of all clients, for a bank whose size is a share of their patches.
        """
        if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
            raise ConfigError(
                "task.kind=anomaly needs square images, but data.name="
                f"{self.settings.data_name} has records of shape {input_shape}"
            )
        public = self.features(public_images(size=input_shape[1], channels=input_shape[0]))
        settings, channels = self.settings, public.shape[-1]
        if settings.dimension is not None and settings.dimension > channels:
            raise ConfigError(
                f"anomaly.dimension={settings.dimension} is more than the {channels} channels of "
                f"anomaly.backbone={settings.backbone}: use anomaly.dimension={min(64, channels)}"
            )
        if self.has_rows:
            most = BANK_DIMENSION if self.is_bank else DIMENSIONS["noisy_rows"]
            wanted = settings.dimension or min(most, channels)
            public_map = fit_public_map(public, wanted, whitening=0.0 if self.is_bank else 0.5)
            rows = settings.coreset_size
            if rows is None:
                patches = num_images * public.shape[1]
                rows = max(2, coreset_size(patches, ratio=settings.coreset_ratio))
            learnt = {BANK: np.zeros((rows, wanted), np.float32)}
        else:
            statistic = make_statistic(settings.mechanism, public, dimension=settings.dimension)
            public_map = statistic.public_map
            learnt = packed_state(statistic.initial_state())
        return {OFFSET: public_map.offset, MATRIX: public_map.matrix, **learnt}

    def map_of(self, state: State) -> PublicMap:
        """The public map that travels in these arrays."""
        is_unit = not (self.is_bank and self.settings.backbone in BY_CONTRAST)
        return PublicMap(state[OFFSET], state[MATRIX], is_unit=is_unit)

    def statistic(self, state: State) -> PrivateStatistic:
        """The statistic that these arrays are a state of."""
        public_map = self.map_of(state)
        if self.settings.mechanism == "dp_prototypes":
            return DPPrototypes(public_map, state["prototypes"])
        return DPGaussian(public_map)

    def scorer(self, state: State) -> Scorer | None:
        """What scores images; None for arrays that have not learnt all they are to learn."""
        if self.has_rows and not state[BANK].any():
            return None
        if self.is_bank:
            return self._bank_scorer(state)
        model = self.model(state)
        if model is None:
            return None

        def score(features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
            patches = model.patch_scores(features)
            return model.image_scores(patches), patches

        return score

    def model(self, state: State) -> AnomalyModel | None:
        """What private arrays have learnt; None before they have learnt it all."""
        if self.has_rows:
            return RowsModel(self.map_of(state), state[BANK])
        statistic, inner = self.statistic(state), unpacked_state(state)
        return statistic.model(inner) if step_of(inner) >= statistic.num_steps else None

    def _bank_scorer(self, state: State) -> Scorer:
        bank, public_map = MemoryBank(state[BANK]), self.map_of(state)
        neighbours = self.settings.neighbours

        def score(features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
            found = [bank.score(rows, neighbours=neighbours) for rows in public_map(features)]
            return np.array([image for image, _ in found]), np.stack([rows for _, rows in found])

        return score

    def scores(
        self, scorer: Scorer, images: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Scores of images and of their patches, batch by batch."""
        found = [scorer(features) for features in self.batches(images)]
        return np.concatenate([i for i, _ in found]), np.concatenate([p for _, p in found])

    def fingerprint(self, input_shape: Sequence[int]) -> float:
        """A number that tells one backbone from another: the spread of a public image's features.

        It is not exact, since two machines need not compute the same last bits.
        """
        image = public_images(1, size=int(input_shape[1]), channels=int(input_shape[0]))
        return float(self.features(image).std())

    def batches(self, images: NDArray[np.uint8]) -> Iterator[NDArray[np.float32]]:
        """Features of images, some at a time."""
        return self.features.batches(images)


def public_images(n: int = 60, *, size: int, channels: int = 3) -> NDArray[np.uint8]:
    """Generated textures that anybody may see, grey or in colour.

    >>> public_images(3, size=32, channels=1).shape
    (3, 1, 32, 32)
    """
    images = normal_images(n, size, _PUBLIC_SEED).x
    if channels != 3:
        images = np.rint(images.mean(axis=1, keepdims=True)).astype(np.uint8)
    return images


def make_statistic(
    name: str, public_features: NDArray[Any], *, dimension: int | None = None
) -> PrivateStatistic:
    """`dp_gaussian` or `dp_prototypes`, with a public map and anchors by `public_images`' features.

    The map's dimension is that of `DIMENSIONS` unless given, at most the number of channels.
    """
    wanted = dimension or min(DIMENSIONS.get(name, 1), public_features.shape[-1])
    if name == "dp_gaussian":
        return DPGaussian(fit_public_map(public_features, wanted))
    if name == "dp_prototypes":
        public_map = fit_public_map(public_features, wanted)
        patches = public_map(public_features).reshape(-1, wanted)
        return DPPrototypes(public_map, patches[greedy_k_center(patches, NUM_PROTOTYPES)])
    raise ValueError(f"mechanism={name!r} is not known: use dp_gaussian or dp_prototypes")


def packed_state(inner: State) -> State:
    """A statistic's state as it travels: safetensors and Flower keep no scalars."""
    return {**inner, "step": np.array([step_of(inner)], dtype=np.int64)}


def unpacked_state(state: State) -> State:
    """A statistic's own state, without the map."""
    inner = {name: value for name, value in state.items() if name not in (OFFSET, MATRIX)}
    return {**inner, "step": state["step"].reshape(())}
