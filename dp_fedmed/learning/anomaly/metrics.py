"""From patch scores to scores of images and pixels, and how well those tell defects from normal.

Image AUROC, pixel AUROC and AUPRO at several limits are one computation. At a threshold, a score
curve gains the weight of a defective item and the false-positive rate of the normal ones; one
defective item whose score t beats a share of the normal ones adds to the area under the curve a
ramp that rises where the false-positive rate goes from P(normal > t) to P(normal ≥ t). One sort of
the normal scores gives every area exactly, ties included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dp_fedmed.learning.anomaly.bank import MemoryBank
    from dp_fedmed.learning.anomaly.statistics import AnomalyModel

Floats = NDArray[np.float32]
FPR_LIMITS = (0.01, 0.05, 0.1, 0.3, 1.0)


def pixel_maps(patch_scores: Floats, *, image_size: int, blur: float | None = None) -> Floats:
    """Patch scores (n, grid·grid), row by row, as blurred maps (n, image_size, image_size).

    `blur` is the standard deviation of the Gaussian in pixels; by default 4 at 256 pixels, in
    proportion at other sizes; 0 leaves it out.

    >>> pixel_maps(np.ones((2, 16), np.float32), image_size=8).round(5).min()
    np.float32(1.0)
    """
    grid = math.isqrt(patch_scores.shape[1])
    if grid * grid != patch_scores.shape[1]:
        raise ValueError(f"{patch_scores.shape[1]} patches are not a square grid")
    maps = torch.from_numpy(np.ascontiguousarray(patch_scores, dtype=np.float32))
    maps, size = maps.reshape(-1, 1, grid, grid), (image_size, image_size)
    maps = F.interpolate(maps, size=size, mode="bilinear", align_corners=False)
    sigma = image_size / 64.0 if blur is None else blur
    return np.asarray(_blurred(maps, sigma)[:, 0].numpy())


def power_mean(patch_scores: NDArray[Any], power: float) -> NDArray[np.float64]:
    """(mean of sᵖ)^(1/p) over an image's patches: 1 is the mean, infinity the maximum.

    >>> power_mean(np.array([[3.0, 4.0]]), 1.0), power_mean(np.array([[3.0, 4.0]]), np.inf)
    (array([3.5]), array([4.]))
    """
    scores = np.asarray(patch_scores, dtype=np.float64)
    peak = scores.max(axis=1)
    if np.isinf(power):
        return np.asarray(peak)
    safe = np.maximum(peak, 1e-300)
    return np.asarray(safe * np.mean((scores / safe[:, None]) ** power, axis=1) ** (1.0 / power))


def auroc(scores: NDArray[Any], is_defect: NDArray[Any]) -> float | None:
    """Chance that a defective item scores above a normal one, ties counting half.

    None where only one of the two kinds is there.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    scores, marked = np.ravel(scores), np.ravel(is_defect).astype(bool)
    count = int(np.count_nonzero(marked))
    weights = np.full(count, 1.0 / max(1, count))
    areas = _areas(scores[~marked], scores[marked], weights, (1.0,))
    return None if areas is None else areas[0]


def aupro(
    maps: NDArray[Any], masks: NDArray[Any], limits: Sequence[float] = FPR_LIMITS
) -> dict[float, float] | None:
    """Area under the per-region overlap up to each limit of the false-positive rate.

    It is divided by the limit, so that 1 is perfect. The overlap is the share of a region found,
    averaged over all regions (8-connected components of masks above 0), however large they are
    (Bergmann et al. 2021). None without a region or without a normal pixel.
    """
    marked = masks > 0
    areas = _areas(maps[~marked], maps[marked], _region_weights(marked)[marked], limits)
    return None if areas is None else dict(zip(limits, areas, strict=True))


def anomaly_metrics(
    image_scores: NDArray[Any],
    maps: NDArray[Any] | None,
    *,
    labels: NDArray[Any],
    masks: NDArray[Any],
) -> dict[str, float]:
    """`image_auroc`, `pixel_auroc` and `aupro_<limit>`; what is undefined is left out.

    Without `maps` (n, H, W), the image figure only. A defective image without a mask is left out of
    the pixel figures: where its defect is, nobody knows.

    >>> one = np.zeros((2, 4, 4)); one[1, 0, 0] = 1
    >>> figures = anomaly_metrics(one.max(axis=(1, 2)), one, labels=np.array([0, 1]), masks=one)
    >>> figures["image_auroc"], figures["pixel_auroc"], figures["aupro_0.3"]
    (1.0, 1.0, 1.0)
    """
    found: dict[str, float | None] = {"image_auroc": auroc(image_scores, labels > 0)}
    if maps is not None:
        known = (labels == 0) | (masks > 0).any(axis=(1, 2))
        if not known.all():
            maps, masks = maps[known], masks[known]
        found["pixel_auroc"] = auroc(maps, masks > 0)
        for limit, value in (aupro(maps, masks) or {}).items():
            found[f"aupro_{limit:g}"] = value
    return {name: value for name, value in found.items() if value is not None}


def grouped_metrics(
    image_scores: NDArray[Any], labels: NDArray[Any], groups: NDArray[Any], names: Sequence[str]
) -> dict[str, float]:
    """Image AUROC within each category or client; where it is undefined, it is left out.

    >>> scores, labels = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 1, 1, 0])
    >>> grouped_metrics(scores, labels, np.array([0, 0, 1, 1]), ("bolt", "nut"))
    {'bolt': 1.0, 'nut': 0.0}
    """
    found = {
        name: auroc(image_scores[groups == number], labels[groups == number] > 0)
        for number, name in enumerate(names)
    }
    return {name: value for name, value in found.items() if value is not None}


def threshold(normal_scores: NDArray[Any], *, false_positive_rate: float = 0.05) -> float:
    """The score that this share of normal images exceeds. On private images it is a release.

    >>> threshold(np.arange(101.0), false_positive_rate=0.05)
    95.0
    """
    if not 0.0 < false_positive_rate < 1.0:
        raise ValueError(
            f"false_positive_rate={false_positive_rate!r} must be in (0, 1), for example 0.05"
        )
    return float(np.quantile(normal_scores, 1.0 - false_positive_rate))


def nearest_distance_attack(
    model: MemoryBank | AnomalyModel, members: NDArray[Any], others: NDArray[Any]
) -> float:
    """How well the least patch score tells members from other normal images, as an AUROC.

    Near 1, the model gives away whose features (n, P, channels) it was built from: a memory bank
    holds members' patches as they are, at distance 0. At 0.5 the attack learns nothing; that proves
    nothing about other attacks.
    """
    least = [model.patch_scores(features).min(axis=1) for features in (members, others)]
    scores = -np.concatenate(least).astype(np.float64)
    is_member = np.repeat([True, False], [len(members), len(others)])
    found = auroc(scores, is_member)
    if found is None:
        raise ValueError("the attack needs members and others, at least one of each")
    return found


def _areas(
    normal: NDArray[Any], defective: NDArray[Any], weights: NDArray[Any], limits: Sequence[float]
) -> list[float] | None:
    """Area under the curve up to each limit, divided by it; the weights sum to 1."""
    if len(normal) == 0 or len(defective) == 0:
        return None
    if not (np.isfinite(normal).all() and np.isfinite(defective).all()):
        raise ValueError("scores must be finite numbers")
    ranked = np.sort(normal)
    order = np.argsort(defective)
    asked, weight = defective[order], weights[order]
    above = 1.0 - np.searchsorted(ranked, asked, side="right") / len(ranked)
    not_below = 1.0 - np.searchsorted(ranked, asked, side="left") / len(ranked)
    return [float(_ramp(limit, above, not_below) @ weight) / limit for limit in limits]


def _ramp(limit: float, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Area up to `limit` under a line that rises from 0 at a to 1 at b and stays there."""
    inside = np.clip(limit - a, 0.0, None)
    width = np.where(b > a, b - a, 1.0)
    rising = np.where(b > a, np.square(np.minimum(inside, b - a)) / (2.0 * width), 0.0)
    return rising + np.clip(limit - b, 0.0, None)


def _region_weights(marked: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Per pixel, 1/(number of regions · size of its region)."""
    from scipy.ndimage import label

    weights = np.zeros(marked.shape)
    total = 0
    for i in np.flatnonzero(marked.any(axis=(1, 2))):
        regions, count = label(marked[i], structure=np.ones((3, 3)))
        sizes = np.bincount(regions.ravel())
        weights[i] = np.where(marked[i], 1.0 / sizes[regions], 0.0)
        total += count
    return weights / max(1, total)


def _blurred(maps: torch.Tensor, sigma: float) -> torch.Tensor:
    reach = min(math.ceil(3.0 * sigma), maps.shape[-1] - 1)
    if reach == 0:
        return maps
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    kernel = (kernel / kernel.sum()).reshape(1, 1, 1, -1)
    for pad, shaped in (((reach, reach, 0, 0), kernel), ((0, 0, reach, reach), kernel.mT)):
        maps = F.conv2d(F.pad(maps, pad, mode="reflect"), shaped)
    return maps
