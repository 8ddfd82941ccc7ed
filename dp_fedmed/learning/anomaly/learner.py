"""Anomaly detection: a memory bank without privacy, else a statistic of bounded vectors.

With privacy a client answers the mean of one vector per image, each of norm at most 1. For one
image as the unit, noise σ/n_i is added to that mean by the client, or noise σ to the federation's
sum by a trusted server; for one client as the unit, the server clips the mean and noises the sum
over clients. `dp_fedmed.learning.anomaly.statistics` has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

from dp_fedmed.config import Config
from dp_fedmed.data import DataSet, Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.learning.anomaly.coreset import greedy_k_center
from dp_fedmed.learning.anomaly.detector import BANK, Detector, Scorer, unpacked_state
from dp_fedmed.learning.anomaly.maps import pixel_maps
from dp_fedmed.learning.anomaly.metrics import anomaly_metrics, grouped_metrics, threshold
from dp_fedmed.learning.anomaly.statistics import BOUND, step_of
from dp_fedmed.learning.anomaly.steps import (
    VECTOR,
    BankStep,
    NoisyRowsStep,
    StatisticStep,
    largest_sigma,
    noise_of,
)
from dp_fedmed.learning.base import LocalRound, State
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.learning.networks.learner import asked_shape
from dp_fedmed.learning.server_step import ServerStep
from dp_fedmed.planning.plan import PrivacyPlan, record_adjacency
from dp_fedmed.privacy.accounting.events import Adjacency
from dp_fedmed.privacy.mechanisms.client_level import ClientLevelMechanism
from dp_fedmed.privacy.mechanisms.record_level import RecordLevelMechanism
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.progress import telling
from dp_fedmed.reporting.picture_sheet import PICTURES_FILE
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.site.ledger import RecordPlan

RECORD_NOISE, FEATURES = "record_noise", "features"
FEATURES_TOLERANCE = 0.01


class AnomalyLearner:
    """The server's half: the detector, and its own images to judge it by."""

    def __init__(self, config: Config, data: DataSet, num_images: int) -> None:
        self.config, self.data = config, data
        self.detector = Detector(config)
        self._initial = self.detector.initial(data.input_shape, num_images)

    def initial(self) -> State:
        """What public images say."""
        return self._initial

    def told(self) -> dict[str, Any]:
        """Who noises, and what features look like: a client that differs must not answer."""
        return {
            RECORD_NOISE: noised_by(self.config),
            FEATURES: self.detector.fingerprint(self.data.input_shape),
        }

    def settled(self, config: Config) -> Config:
        """Nothing is open, and images are kept apart by construction."""
        return config

    def mechanism(self, plan: PrivacyPlan, sampler: Sampler) -> ClientLevelMechanism | None:
        """Noise at the server: for clients, or once for all images where it is trusted."""
        population = self.config.num_sites
        if plan.user_event is not None:
            return ClientLevelMechanism(
                self.config.privacy.user,
                noise_multiplier=plan.user_event.noise_multiplier,
                expected_cohort=sampler.expected(population),
            )
        if not self.config.record_noise_at_server:
            return None
        return RecordLevelMechanism(
            {name: own.records for name, own in plan.clients.items()},
            noise_multiplier=largest_sigma(plan.clients),
            share=sampler.expected(population) / population,
        )

    def step(self, plan: PrivacyPlan | None, sampler: Sampler) -> ServerStep:
        """Merge rows, or move the statistic on."""
        if plan is None:
            return BankStep(self.config.seed)
        if self.config.releases_rows:
            return NoisyRowsStep(self.config.seed)
        return StatisticStep(self.detector, noise_of(self.config, plan, sampler)[0])

    def advice(self, plan: PrivacyPlan, sampler: Sampler) -> str | None:
        """How many images or clients it would take, if a release would be mostly noise."""
        if self.config.releases_rows:
            return self._weakness(plan)
        noise_std, units = noise_of(self.config, plan, sampler)
        needed = self.detector.statistic(self._initial).units_needed(noise_std * units)
        if needed <= units:
            return None
        what = "clients" if self.config.privacy.style.protects_clients else "images"
        dimension = self.detector.map_of(self._initial).dimension
        return (
            f"anomaly.mechanism={self.config.anomaly.mechanism} in {dimension} dimensions with "
            f"noise of {noise_std * units:.3g} on the sum needs about {needed} {what} to say more "
            f"than noise, and a round has {units:.0f}: use more {what}, a larger target_epsilon, "
            f"or anomaly.dimension={max(1, int(dimension * units / needed))}"
        )

    def _weakness(self, plan: PrivacyPlan) -> str:
        rows = self.detector.noisy_rows(self._initial)
        length = rows.noise_std(largest_sigma(plan.clients)) * rows.public_map.dimension**0.5
        return (
            "anomaly.mechanism=noisy_rows is weak, and kept for comparison: rows do not add up, so "
            f"each bears all the noise, here of length {length:.3g} on a row of length 1, however "
            "many images there are; use anomaly.mechanism=dp_gaussian to find anomalies"
        )

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """AUROCs and AUPROs where there are defects; by category; a threshold on `val`."""
        scorer = self.detector.scorer(state)
        if scorer is None:
            return {}
        records = self.data.parts()[split]
        labels = records.image_labels
        image_scores, patch_scores = self.detector.scores(scorer, records.x)
        maps = None
        if records.y.any():
            maps = pixel_maps(patch_scores, image_size=records.x.shape[-1])
        found = anomaly_metrics(image_scores, maps, labels=labels, masks=records.y)
        if split == "val":
            found["threshold"] = threshold(image_scores[labels == 0])
        if records.site is not None and len(self.data.site_names) > 1:
            names = self.data.site_names
            by_site = grouped_metrics(image_scores, labels, records.site, names)
            found |= {f"image_auroc/{name}": value for name, value in by_site.items()}
            spread = fairness(list(by_site.values()))
            found |= {f"image_auroc/{name}": value for name, value in spread.items()}
        return found

    def finish(self, state: State, directory: RunDirectory) -> None:
        """A sheet of test images, where they are found strange, and where they are damaged."""
        from dp_fedmed.reporting.anomaly_sheet import chosen_for_sheet, picture_sheet

        scorer = self.detector.scorer(state)
        if scorer is None:
            return
        test = self.data.test
        sites = np.zeros(len(test), np.int64) if test.site is None else test.site
        shown = test.subset(chosen_for_sheet(test.image_labels, sites))
        picture_sheet(
            shown.x,
            self._maps(scorer, shown),
            shown.y,
            [self.data.class_names[label] for label in shown.image_labels],
            directory.path / PICTURES_FILE,
        )

    def _maps(self, scorer: Scorer, records: Records) -> np.ndarray[Any, Any]:
        _, patch_scores = self.detector.scores(scorer, records.x)
        return pixel_maps(patch_scores, image_size=records.x.shape[-1])


@dataclass(frozen=True, kw_only=True)
class StatisticPlan:
    """What one client's images are charged with in one round: one sum of all of them."""

    noise_multiplier: float
    noised_by: str
    sample_rate: float = 1.0
    steps: int = 1
    adjacency: Adjacency = "zero_out"

    @property
    def in_force(self) -> dict[str, float | str]:
        """What the round's secret streams depend on."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": BOUND,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            RECORD_NOISE: self.noised_by,
        }


def noised_by(config: Config) -> str:
    """Who adds the noise that protects images."""
    return "server" if config.record_noise_at_server else "clients"


class AnomalyWork:
    """A client's half."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.detector = Detector(config)
        self._built: tuple[int, ...] = ()
        self._fingerprint = 0.0

    def build(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Load the backbone."""
        if self._built != tuple(input_shape):
            self._fingerprint = self.detector.fingerprint(input_shape)
            self._built = tuple(input_shape)

    def accept(self, sent: ArrayRecord) -> State:
        """A state of finite numbers; whatever they are, an image's vector is clipped to norm 1."""
        return model_arrays.finite(sent)

    def agree(self, told: ConfigRecord) -> None:
        """Noise is added by whom both say, to features of one backbone."""
        own = noised_by(self.config)
        if told.get(RECORD_NOISE) != own:
            raise ConfigError(
                f"the server counts on noise by the {told.get(RECORD_NOISE)!s}, this client on "
                f"noise by the {own}: start both with the same anomaly.server_trusted"
            )
        expected = float(told.get(FEATURES, 0.0))  # type: ignore[arg-type]
        if abs(expected - self._fingerprint) > FEATURES_TOLERANCE * abs(expected):
            raise ConfigError(
                f"anomaly.backbone={self.config.anomaly.backbone} gives other features here than "
                "at the server: use the same anomaly.weights, layers and torchvision at every site"
            )

    def plan(self, told: ConfigRecord, records: int) -> StatisticPlan:
        """One step with all images, noised by whom this client's own settings say."""
        noise, q, steps = asked_shape(self.config, told, records)
        own = noised_by(self.config)
        return StatisticPlan(
            noise_multiplier=noise,
            noised_by=own,
            sample_rate=q,
            steps=steps,
            adjacency=record_adjacency(self.config),
        )

    def vet(self, plan: RecordPlan, records: Records) -> None:
        """Each image's vector is bounded by itself; there is no network of the user's."""

    def train(self, work: LocalRound) -> tuple[State, dict[str, float]]:
        """Rows for the bank, noised rows, or the mean of the images' vectors."""
        if self.detector.is_bank:
            return {BANK: self._rows(work)}, {}
        if self.detector.has_rows:
            return {BANK: self._noisy_rows(work)}, {}
        return {VECTOR: self._mean(work)}, {}

    def _mean(self, work: LocalRound) -> np.ndarray[Any, Any]:
        """Of vectors of norm at most 1, so its own norm is at most 1; noised if that is ours."""
        state = work.received
        statistic, inner = self.detector.statistic(state), unpacked_state(state)
        is_last = step_of(inner) + 1 >= statistic.num_steps
        batches = self.detector.cache.batches(self._as_told(work.records.x), last=is_last)
        total, count = statistic.total(batches, inner)
        mean = total / max(1, count)
        if work.plan is None or self.config.record_noise_at_server:
            return mean
        if work.secrets is None:
            raise ValueError("noise needs secret streams")
        stream = work.secrets.noise(Purpose.STATISTIC_NOISE, [mean])
        std = work.plan.noise_multiplier * BOUND / max(1, count)  # an image moves it by 1/count
        return np.asarray(mean + stream.normal(mean.shape, std=std))

    def _noisy_rows(self, work: LocalRound) -> np.ndarray[Any, Any]:
        """Random patches with noise; whoever has fewer than there is room for repeats them."""
        size, dimension = work.received[BANK].shape
        if work.plan is None or work.secrets is None:
            raise ValueError("noise needs a plan and secret streams")
        if len(work.records) == 0:
            return np.zeros((size, dimension), np.float32)
        rows = self.detector.noisy_rows(work.received)
        exact = rows.select(
            self.detector.batches(self._as_told(work.records.x)),
            selection=work.secrets.selection(Purpose.ROW_SELECTION),
            most=size,
        )
        noise = work.secrets.noise(Purpose.EMBEDDING_NOISE, [exact])
        sigma = work.plan.noise_multiplier
        noised = rows.noised(exact, noise_multiplier=sigma, noise=noise)
        return np.resize(noised, (size, dimension))

    def _rows(self, work: LocalRound) -> np.ndarray[Any, Any]:
        """A k-center of this client's patches; one that has too few repeats them."""
        size, dimension = work.received[BANK].shape
        if len(work.records) == 0:
            return np.zeros((size, dimension), np.float32)
        public_map = self.detector.map_of(work.received)
        batches = self.detector.batches(self._as_told(work.records.x))
        rows = np.concatenate([public_map(f).reshape(-1, dimension) for f in batches])
        progress = telling("choosing patches")
        chosen = greedy_k_center(rows, size, seed=self.config.seed, progress=progress)
        return np.resize(rows[chosen], (size, dimension))

    def evaluate(self, received: State, records: Records) -> dict[str, float]:
        """Image AUROC where there are defects, and the mean score of normal images."""
        scorer = self.detector.scorer(received)
        if scorer is None or len(records) == 0:
            return {}
        labels = records.image_labels
        scores = self.detector.scores(scorer, self._as_told(records.x))[0]
        found = anomaly_metrics(scores, None, labels=labels, masks=records.y)
        normal = scores[labels == 0]
        return found | ({"normal_score": float(normal.mean())} if len(normal) else {})

    def _as_told(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """This site's images with as many channels as the server's have.

        Raises:
            ConfigError: for images of another size.
        """
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
