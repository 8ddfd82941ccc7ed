"""Anomaly detection: a memory bank without privacy, else a statistic of bounded vectors.

With privacy a client answers the mean of one vector per image, each of norm at most 1. For one
image as the unit, noise σ/n_i is added to that mean by the client, or noise σ to the federation's
sum by a trusted server; for one client as the unit, the server clips the mean and noises the sum
over clients. `dp_fedmed.learning.anomaly.statistics` has the proofs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.data import DataSet, Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.anomaly.bank import greedy_k_center
from dp_fedmed.learning.anomaly.detector import (
    BANK,
    Detector,
    DetectorSettings,
    unpacked_state,
)
from dp_fedmed.learning.anomaly.metrics import (
    anomaly_metrics,
    grouped_metrics,
    pixel_maps,
    threshold,
)
from dp_fedmed.learning.anomaly.noisy_rows import drawn_rows
from dp_fedmed.learning.anomaly.statistics import step_of
from dp_fedmed.learning.anomaly.steps import VECTOR
from dp_fedmed.learning.base import Evaluation, LocalRound, Pictures, State
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.privacy.mechanisms.base import RecordMechanism
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.privacy.streams import Purpose
from dp_fedmed.progress import telling

FEATURES = "features"
FEATURES_TOLERANCE = 0.01


class AnomalyLearner:
    """The server's half: the detector, and its own images to judge it by.

    Args:
        settings: of the detector.
        data: the server's own images.
        num_images: of all clients, for a bank whose size is a share of their patches.
    """

    def __init__(self, settings: DetectorSettings, data: DataSet, num_images: int) -> None:
        self.data = data
        self.detector = Detector(settings)
        self._initial = self.detector.initial(data.input_shape, num_images)

    def initial(self) -> State:
        """What public images say."""
        return self._initial

    def order(self) -> dict[str, Any]:
        """Who noises, and what features look like: a client that differs must not answer."""
        return {
            FEATURES: self.detector.fingerprint(self.data.input_shape),
        }

    def settle(self, grad_mode: str) -> str:
        """Nothing is open: images are kept apart by construction."""
        return grad_mode

    @property
    def dimension(self) -> int:
        """Of the public map."""
        return self.detector.map_of(self._initial).dimension

    def units_needed(self, noise: float) -> int:
        """How many images or clients it takes for a release with such noise to say something."""
        return self.detector.statistic(self._initial).units_needed(noise)

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """AUROCs and AUPROs where there are defects; by category; a threshold on `val`."""
        scorer = self.detector.scorer(state)
        if scorer is None:
            return {}
        records = self.data.parts()[split]
        labels = records.image_labels
        image_scores, patch_scores = self.detector.scores(scorer, records.x)
        size = records.x.shape[-1]
        maps = pixel_maps(patch_scores, image_size=size) if records.y.any() else None
        found = anomaly_metrics(image_scores, maps, labels=labels, masks=records.y)
        if split == "val":
            found["threshold"] = threshold(image_scores[labels == 0])
        if records.site is not None and len(self.data.site_names) > 1:
            names = self.data.site_names
            by_site = grouped_metrics(image_scores, labels, records.site, names)
            figures = {**by_site, **fairness(list(by_site.values()))}
            found |= {f"image_auroc/{name}": value for name, value in figures.items()}
        return found

    def finish(self, state: State) -> Evaluation:
        """Test images, where they are found strange, and where they are damaged."""
        scorer = self.detector.scorer(state)
        if scorer is None:
            return Evaluation()
        test = self.data.test
        sites = np.zeros(len(test), np.int64) if test.site is None else test.site
        shown = test.subset(one_of_each(test.image_labels, sites))
        _, patch_scores = self.detector.scores(scorer, shown.x)
        return Evaluation(
            pictures=Pictures(
                kind="anomaly",
                images=shown.x,
                truth=shown.y,
                found=pixel_maps(patch_scores, image_size=shown.x.shape[-1]),
                titles=[self.data.class_names[label] for label in shown.image_labels],
            )
        )


class AnomalyWork:
    """A client's half."""

    def __init__(self, settings: DetectorSettings) -> None:
        self.detector = Detector(settings)
        self._built: tuple[int, ...] = ()
        self._fingerprint = 0.0

    def build(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Load the backbone."""
        if self._built != tuple(input_shape):
            self._fingerprint = self.detector.fingerprint(input_shape)
            self._built = tuple(input_shape)

    def expected(self) -> None:
        """Any finite numbers: whatever they are, an image's vector is clipped to norm 1."""
        return

    def agree(self, order: Mapping[str, Any]) -> None:
        """Noise is added by whom both say, to features of one backbone."""
        expected = float(order.get(FEATURES, 0.0))
        if abs(expected - self._fingerprint) > FEATURES_TOLERANCE * abs(expected):
            raise ConfigError(
                f"anomaly.backbone={self.detector.settings.backbone} gives other features here than"
                " at the server: use the same anomaly.weights, layers and torchvision at every site"
            )

    def vet(self, mechanism: RecordMechanism, records: Records) -> None:
        """Each image's vector is bounded by itself; there is no network of the user's."""

    def train(self, work: LocalRound) -> tuple[State, dict[str, float]]:
        """Rows for the bank, noised rows, or the mean of the images' vectors."""
        if self.detector.is_bank:
            return {BANK: self._rows(work)}, {}
        if self.detector.has_rows:
            return {BANK: self._noisy_rows(work)}, {}
        return {VECTOR: self._mean(work)}, {}

    def _mean(self, work: LocalRound) -> np.ndarray[Any, Any]:
        """Of vectors of norm at most 1; noised if that is ours, else the server gets their sum."""
        state = work.received
        statistic, inner = self.detector.statistic(state), unpacked_state(state)
        is_last = step_of(inner) + 1 >= statistic.num_steps
        batches = self.detector.cache.batches(self._as_ordered(work.records.x), last=is_last)
        mechanism = work.mechanism
        if mechanism is None:
            total, count = statistic.total(batches, inner)
            return total / max(1, count)
        if work.streams is None:
            raise ValueError("noise needs secret streams")
        exact = np.zeros(statistic.vector_size(step_of(inner)), np.int64)
        for features in batches:
            exact += mechanism.bound(statistic.vectors(features, inner)).sum(axis=0)
        return np.asarray(mechanism.release(exact, work.streams))

    def _noisy_rows(self, work: LocalRound) -> np.ndarray[Any, Any]:
        """Random patches with noise; whoever has fewer than there is room for repeats them."""
        size, dimension = work.received[BANK].shape
        mechanism = work.mechanism
        if not isinstance(mechanism, NoisyRows) or work.streams is None:
            raise ValueError("noise needs a mechanism and secret streams")
        if len(work.records) == 0:
            return np.zeros((size, dimension), np.float32)
        exact = drawn_rows(
            mechanism,
            self.detector.map_of(work.received),
            self.detector.batches(self._as_ordered(work.records.x)),
            selection=work.streams.selection(Purpose.ROW_SELECTION),
            most=size,
        )
        return np.resize(mechanism.release(exact, work.streams), (size, dimension))

    def _rows(self, work: LocalRound) -> np.ndarray[Any, Any]:
        """A k-center of this client's patches; one that has too few repeats them."""
        size, dimension = work.received[BANK].shape
        if len(work.records) == 0:
            return np.zeros((size, dimension), np.float32)
        public_map, seed = self.detector.map_of(work.received), self.detector.settings.seed
        batches = self.detector.batches(self._as_ordered(work.records.x))
        rows = np.concatenate([public_map(f).reshape(-1, dimension) for f in batches])
        chosen = greedy_k_center(rows, size, seed=seed, progress=telling("choosing patches"))
        return np.resize(rows[chosen], (size, dimension))

    def evaluate(self, received: State, records: Records) -> dict[str, float]:
        """Image AUROC where there are defects, and the mean score of normal images."""
        scorer = self.detector.scorer(received)
        if scorer is None or len(records) == 0:
            return {}
        labels = records.image_labels
        scores = self.detector.scores(scorer, self._as_ordered(records.x))[0]
        found = anomaly_metrics(scores, None, labels=labels, masks=records.y)
        normal = scores[labels == 0]
        return found | ({"normal_score": float(normal.mean())} if len(normal) else {})

    def _as_ordered(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """This site's images with as many channels as the server's have."""
        if not self._built or images.shape[1:] == self._built:
            return images
        if images.shape[2:] != self._built[1:]:
            raise ConfigError(
                f"this site's images have {images.shape[2:]} pixels, the server's "
                f"{self._built[1:]}: use the same data.image_size"
            )
        if images.shape[1] == 1:
            return np.repeat(images, 3, axis=1)
        weights = np.array([0.299, 0.587, 0.114])[:, None, None]  # as Pillow makes grey of colour
        grey = np.rint((images * weights).sum(axis=1, keepdims=True))
        return np.asarray(grey, dtype=np.uint8)


def one_of_each(labels: NDArray[Any], groups: NDArray[Any], most: int = 9) -> NDArray[np.int64]:
    """Positions of a few images, one of each kind and group as far as they fit, normal ones first.

    >>> one_of_each(np.array([0, 1, 1, 0]), np.array([0, 0, 0, 0])).tolist()
    [0, 1]
    """
    pairs = np.stack([labels, groups], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    if len(first) > most:
        first = first[np.linspace(0, len(first) - 1, most).round().astype(int)]
    return np.asarray(first, dtype=np.int64)
