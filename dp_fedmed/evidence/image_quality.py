"""How close a rebuilt image comes to the original: PSNR, SSIM, and who is whose."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float64]

BEST_PSNR = 100.0  # of an image that is the same to the last bits
_C1, _C2 = 0.01**2, 0.03**2


def psnr(found: Images, original: Images) -> float:
    """Peak signal-to-noise ratio of an image in [0, 1], in decibels; at most 100.

    >>> round(psnr(np.full((1, 4, 4), 0.6), np.full((1, 4, 4), 0.5)), 1)
    20.0
    """
    error = float(((found - original) ** 2).mean())
    return float(min(BEST_PSNR, -10.0 * np.log10(max(error, 1e-30))))


def ssim(found: Images, original: Images) -> float:
    """Structural similarity with a Gaussian window (Wang et al. 2004), mean over channels.

    >>> image = np.random.default_rng(0).random((1, 16, 16))
    >>> round(ssim(image, image), 6)
    1.0
    """
    from scipy.ndimage import gaussian_filter

    def local(image: Any) -> Any:
        return gaussian_filter(image, sigma=(0.0, 1.5, 1.5), truncate=3.5)

    a, b = local(found), local(original)
    spread_a, spread_b = local(found**2) - a * a, local(original**2) - b * b
    shared = local(found * original) - a * b
    top = (2 * a * b + _C1) * (2 * shared + _C2)
    return float((top / ((a * a + b * b + _C1) * (spread_a + spread_b + _C2))).mean())


def paired(found: Images, originals: Images) -> Images:
    """The found images in the order of the originals that they are closest to, all together.

    A sum over records keeps no order, so any order is as good; this one favours the attacker.

    >>> paired(np.array([[[[1.0]]], [[[0.0]]]]), np.array([[[[0.1]]], [[[0.9]]]])).ravel().tolist()
    [0.0, 1.0]
    """
    from scipy.optimize import linear_sum_assignment

    n, m = len(found), len(originals)
    errors = ((found.reshape(n, 1, -1) - originals.reshape(1, m, -1)) ** 2).mean(axis=2)
    rows, columns = linear_sum_assignment(errors)
    ordered = np.empty_like(originals)
    ordered[columns] = found[rows]
    return ordered
