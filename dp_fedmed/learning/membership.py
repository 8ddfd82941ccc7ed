"""A membership attack on a finished anomaly run: which images was its detector built from?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.config import Config, ConfigError, TaskKind, from_yaml
from dp_fedmed.data import load_data
from dp_fedmed.data.clients import client_indices
from dp_fedmed.federation.run_directory import CONFIG_FILE, MODEL_FILE, RunDirectory
from dp_fedmed.learning.detector import BANK, Detector, State
from dp_fedmed.tasks.patchcore.bank import MemoryBank
from dp_fedmed.tasks.patchcore.membership import nearest_distance_attack
from dp_fedmed.tasks.patchcore.public_map import PublicMap
from dp_fedmed.tasks.patchcore.statistics import Floats


@dataclass(frozen=True)
class MembershipResult:
    """How well an attack tells members from others.

    Attributes:
        auroc: 0.5 is guessing, 1 is certainty.
        standard_error: of the AUROC, from the numbers of images (Hanley & McNeil 1982).
        members: images that the detector was built from.
        others: normal images of the same kind that it never saw.
    """

    auroc: float
    standard_error: float
    members: int
    others: int

    @property
    def succeeds(self) -> bool:
        """Whether the AUROC is above guessing by more than chance (one-sided 97.5 %)."""
        return self.auroc - 1.96 * self.standard_error > 0.5


def nearest_distance_attack_on(run_dir: str | Path) -> MembershipResult:
    """Attack the final detector of a simulated run.

    Members are the training images of all its clients; the others are the server's validation
    images and the normal ones of the test. Failing proves nothing about other attacks.

    Args:
        run_dir: of a finished run of an anomaly task whose data are still there.

    Raises:
        ConfigError: if it is no such run.
    """
    folder = Path(run_dir)
    for name in (CONFIG_FILE, MODEL_FILE):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} is not the directory of a finished run: it has no {name}")
    config = from_yaml((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    if config.task.kind is not TaskKind.anomaly:
        raise ConfigError(
            f"{folder} holds a run of task.kind={config.task.kind}: the nearest-distance attack is "
            "for anomaly tasks, for example task=textures"
        )
    members, others = _members_and_others(config)
    detector = Detector(config)
    state = RunDirectory(folder).load_model()
    extract = detector.features
    found = nearest_distance_attack(_attacked(detector, state), extract(members), extract(others))
    return MembershipResult(
        auroc=found,
        standard_error=standard_error(found, len(members), len(others)),
        members=len(members),
        others=len(others),
    )


class _MappedBank:
    """A memory bank that is asked with features as the backbone gives them."""

    def __init__(self, rows: NDArray[Any], public_map: PublicMap) -> None:
        self.bank, self.public_map = MemoryBank(rows), public_map

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        return self.bank.patch_scores(self.public_map(features))

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(patch_scores.min(axis=1), dtype=np.float64)


def _attacked(detector: Detector, state: State) -> Any:
    if detector.is_bank:
        return _MappedBank(state[BANK], detector.map_of(state))
    model = detector.model(state)
    if model is None:
        raise ConfigError("the run stopped before its detector was finished: resume it first")
    return model


def _members_and_others(config: Config) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    data = load_data(config.data, seed=config.seed)
    clients = config.federation.num_clients
    trained_on = [
        client_indices(config, data, client=number, num_clients=clients)[0]
        for number in range(clients)
    ]
    normal = data.test.x[data.test.image_labels == 0]
    return data.train.x[np.concatenate(trained_on)], np.concatenate([data.val.x, normal])


def standard_error(auroc: float, positives: int, negatives: int) -> float:
    """Of an AUROC, as if scores were exponential (Hanley & McNeil 1982).

    >>> round(standard_error(0.5, 100, 100), 3)
    0.041
    """
    q1, q2 = auroc / (2.0 - auroc), 2.0 * auroc**2 / (1.0 + auroc)
    spread = (
        auroc * (1.0 - auroc)
        + (positives - 1) * (q1 - auroc**2)
        + (negatives - 1) * (q2 - auroc**2)
    )
    return math.sqrt(max(0.0, spread) / (positives * negatives))
