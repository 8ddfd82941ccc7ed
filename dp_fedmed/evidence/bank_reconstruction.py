"""What an anomaly site's answer holds of its images: rows of a memory bank, or one noised vector.

A row of a bank is a patch of a training image as it is. Which image, and where, is found by
comparing rows with the patches of the site's images: a distance of zero is that very patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.assemble import detector_settings
from dp_fedmed.config import Config
from dp_fedmed.data import Records, load_data
from dp_fedmed.evidence.curious_server import Observed, observe
from dp_fedmed.learning.anomaly.bank import MemoryBank
from dp_fedmed.learning.anomaly.detector import Detector

#: Relative to a patch's norm: the same patch, computed twice.
SAME_PATCH = 1e-4
EMPTY = 0.88  # the grey of a patch that was not sent

_TWO_RELEASES = "federation.num_rounds=2"
STYLES: dict[str, tuple[str, ...]] = {
    "none": ("privacy=none",),
    "sample, ε = 8": ("privacy=sample", "privacy.sample.target_epsilon=8", _TWO_RELEASES),
    "sample, ε = 1": ("privacy=sample", "privacy.sample.target_epsilon=1", _TWO_RELEASES),
}
#: The site adds the noise: a trusted server would be sent exact means.


@dataclass(frozen=True)
class BankRow:
    """What the server has of one style."""

    name: str
    given_away: NDArray[np.bool_]  # (images, patches): whether a patch is among the rows sent
    numbers: int  # sent for all images together
    nearest: float  # median distance of a training patch to the nearest piece of what was sent
    held_out: float  # the same of patches of images that the site does not have

    def to_json(self) -> dict[str, Any]:
        """Figures only."""
        return {
            "style": self.name,
            "patches": int(self.given_away.size),
            "patches_given_away": int(self.given_away.sum()),
            "images_touched": int(self.given_away.any(axis=1).sum()),
            "numbers_sent": self.numbers,
            "median_distance_of_training_patches": self.nearest,
            "median_distance_of_held_out_patches": self.held_out,
        }


def look_into_answer(config: Config, name: str) -> tuple[BankRow, Observed]:
    """Real rounds, and which patches of the site's images its answer holds."""
    seen = observe(config)
    detector = Detector(detector_settings(config))
    public_map = detector.map_of(seen.sent)

    def patches_of(images: NDArray[np.uint8]) -> NDArray[Any]:
        return np.concatenate([public_map(features) for features in detector.batches(images)])

    patches = patches_of(seen.records.x)
    count, per_image, dimension = patches.shape
    sent = [np.asarray(array) for answer in seen.answers for array in answer.values()]
    bank = MemoryBank(np.concatenate([_cut(array, dimension) for array in sent]))
    flat = patches.reshape(-1, dimension)
    distance = bank.nearest(flat)[0][:, 0]
    same = distance <= SAME_PATCH * np.linalg.norm(flat, axis=1).clip(min=1e-12)
    held_out = load_data(config.data, seed=config.seed).val.x
    others = patches_of(held_out).reshape(-1, dimension)
    row = BankRow(
        name,
        same.reshape(count, per_image),
        sum(array.size for array in sent),
        float(np.median(distance)),
        float(np.median(bank.nearest(others)[0])),
    )
    return row, seen


def _cut(array: NDArray[Any], dimension: int) -> NDArray[np.float32]:
    """What was sent, cut into pieces as long as a patch, whatever it means."""
    pieces = array.size // dimension
    return array.reshape(-1)[: pieces * dimension].reshape(pieces, dimension).astype(np.float32)


def chosen_images(records: Records, given_away: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """Positions of a few images: those that gave most away, the categories in turn."""
    sites = np.zeros(len(records), np.int64)
    if records.site is not None:
        sites = np.unique(records.site, return_inverse=True)[1]
    order = np.argsort(-given_away.sum(axis=1), kind="stable")
    rank = np.empty(len(records), np.int64)  # of an image among those of its category
    for site in np.unique(sites):
        own = order[sites[order] == site]
        rank[own] = np.arange(len(own))
    return np.lexsort((sites, rank))[:most].astype(np.int64)


def mosaics(images: NDArray[np.float64], shown: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Images of which only the patches that are shown are left; the rest is grey."""
    n, _, size, _ = images.shape
    side = round(shown.shape[1] ** 0.5)
    cells = np.minimum(np.arange(size) * side // size, side - 1)
    mask = shown.reshape(n, side, side)[:, cells][:, :, cells]
    return np.where(mask[:, None], images, EMPTY)
