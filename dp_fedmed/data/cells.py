"""Generated microscopy: cell images with exact masks, from ten imaging sites, each with its style.

Nothing here is anybody's data, so segmentation runs and tests need no download. Image i depends
only on (seed, i, size): a longer set begins with the shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import split_records
from dp_fedmed.privacy.streams.reproducible import stream

NUM_SITES = 10
# Sites differ in how much they contribute; every site is among the first ten images.
_SITE_OF = (*range(NUM_SITES), 0, 1, 2, 3, 4, 5, 0, 1, 2, 0)


@dataclass(frozen=True)
class SiteStyle:
    """How one site's microscope renders the same kind of cells."""

    background: float
    contrast: float
    illumination: float
    blur: float
    noise: float
    nucleus: float
    debris: float


def site_style(site: int) -> SiteStyle:
    """The fixed style of an imaging site; it does not depend on the run's seed."""
    rng = stream(0, "cells-site", site)
    return SiteStyle(
        background=rng.uniform(0.22, 0.48),
        contrast=rng.uniform(0.18, 0.32),
        illumination=rng.uniform(0.05, 0.13),
        blur=rng.uniform(0.5, 1.1),
        noise=rng.uniform(0.02, 0.05),
        nucleus=rng.choice((-1.0, 1.0)) * rng.uniform(0.5, 0.9),
        debris=rng.uniform(3.0, 8.0),
    )


def load_cells(config: DataConfig, seed: int) -> DataSet:
    """``data.num_records`` generated images of ``data.image_size`` pixels with masks {0, 1}.

    ``site`` holds the imaging site (0 to 9) of each image, for ``data.partition.name=natural``.

    >>> dataset = load_cells(DataConfig(num_records=20, image_size=32), seed=0)
    >>> dataset.train.x.shape, sorted(set(dataset.train.y.ravel().tolist()))
    ((13, 1, 32, 32), [0, 1])
    """
    n, size = config.num_records, config.image_size
    x = np.empty((n, 1, size, size), np.uint8)
    y = np.empty((n, size, size), np.uint8)
    sites = np.resize(np.array(_SITE_OF, dtype=np.int64), n)
    styles = [site_style(site) for site in range(NUM_SITES)]
    for i, site in enumerate(sites):
        x[i, 0], y[i] = render(stream(seed, "cells", size, i), styles[site], size)
    parts = split_records(
        Records(x, y, sites),
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        seed=seed,
        strata=sites,
    )
    return DataSet(*parts, num_classes=2, class_names=("background", "cell"))


def render(rng: np.random.Generator, style: SiteStyle, size: int) -> tuple[Array, Array]:
    """One image, uint8 (size, size), and its mask of the same shape."""
    from scipy.ndimage import gaussian_filter

    pixel = 64.0 / size
    depth = _cell_depth(rng, size)
    mask = depth.max(axis=0) > 0.0
    texture = smooth_noise(rng, size, 16) + 0.6 * smooth_noise(rng, size, 6)
    light = _illumination(rng, size)
    image = style.background + style.illumination * light
    image += style.contrast * _cells(rng, style, depth, texture)
    image += 0.8 * style.contrast * _debris(rng, style, size)
    image += 0.03 * smooth_noise(rng, size, 10)
    image *= 1.0 + 0.8 * style.illumination * light
    image = gaussian_filter(image, style.blur / pixel)
    shot = style.noise * np.sqrt(np.clip(image, 0.02, None) / 0.4)
    image += shot * rng.standard_normal((size, size), dtype=np.float32)
    return to_bytes(image), mask.astype(np.uint8)


def to_bytes(image: Array) -> Array:
    """Brightness in [0, 1] as bytes."""
    return np.clip(np.rint(image * 255.0), 0, 255).astype(np.uint8)


def grid(size: int) -> tuple[Array, Array]:
    """Coordinates of the pixels' centres in [0, 1], as a row and as a column."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    return axis[None, :], axis[:, None]


def _planes(values: Array) -> Array:
    """One number per plane, to be combined with images."""
    return values[:, None, None].astype(np.float32)


def _cell_depth(rng: np.random.Generator, size: int) -> Array:
    """Per cell, (K, size, size): 1 at its centre, 0 on its irregular outline, negative outside.

    An outline is an ellipse whose radius is modulated by harmonics 2 to 5 with random phases. Cells
    come in loose clumps, so that some touch and overlap.
    """
    count = int(rng.integers(5, 12))
    clumps = rng.uniform(0.1, 0.9, (3, 2))
    loose = rng.random((count, 1)) < 0.5
    clumped = clumps[rng.integers(0, 3, count)] + rng.normal(0, 0.11, (count, 2))
    centre = np.where(loose, rng.uniform(0.0, 1.0, (count, 2)), clumped)
    radius = rng.uniform(0.08, 0.15, count)
    stretch = rng.uniform(0.65, 1.0, count)
    turn = np.exp(1j * rng.uniform(0, np.pi, count))
    order = np.arange(2, 6)
    wave = rng.normal(0, 0.16, (count, 4)) / (order - 1) ** 0.6
    phase = np.exp(1j * rng.uniform(0, 2 * np.pi, (count, 4)))
    coefficient = (wave * phase).astype(np.complex64)

    across, down = grid(size)
    dx, dy = across - _planes(centre[:, 0]), down - _planes(centre[:, 1])
    turned = (dx + 1j * dy) * turn[:, None, None].astype(np.complex64)
    u, v = turned.real, turned.imag / _planes(stretch)
    distance = np.sqrt(u * u + v * v) + np.float32(1e-6)
    direction = (u + 1j * v) / distance
    power = direction
    outline = np.ones_like(distance)
    for harmonic in range(4):
        power = power * direction
        outline += (coefficient[:, harmonic, None, None] * power).real
    outline = np.maximum(outline, 0.4) * _planes(radius)
    return np.asarray(1.0 - distance / outline)


def _cells(rng: np.random.Generator, style: SiteStyle, depth: Array, texture: Array) -> Array:
    """Brightness that the cells add: textured cytoplasm, a rim, and a nucleus of either sign."""
    count = len(depth)
    inside = np.clip(depth * 8.0, 0.0, 1.0)
    brightness = _planes(rng.uniform(0.45, 1.25, count))
    rim = np.exp(-(((depth - 0.1) / 0.1) ** 2)) * inside
    nucleus = 0.5 + 0.5 * np.tanh(12.5 * (depth - _planes(rng.uniform(0.45, 0.62, count))))
    body = inside * (0.75 + 0.5 * texture) + 0.35 * rim + style.nucleus * nucleus
    # Overlaps add up, but not linearly: a thicker layer also absorbs.
    total = (brightness * body).sum(axis=0)
    return np.asarray(np.where(total > 1.0, 1.0 + 0.5 * (total - 1.0), total))


def _debris(rng: np.random.Generator, style: SiteStyle, size: int) -> Array:
    """Distractors that no mask contains: specks, fibres, and blobs that are out of focus."""
    across, down = grid(size)
    count = int(rng.poisson(style.debris)) + 1
    kind = rng.integers(0, 3, count)
    length = np.array([0.014, 0.11, 0.10])[kind] * rng.uniform(0.7, 1.4, count)
    width = np.array([0.014, 0.010, 0.09])[kind] * rng.uniform(0.8, 1.2, count)
    strength = np.array([1.5, 1.1, 0.55])[kind] * rng.uniform(0.7, 1.2, count)
    x, y = rng.uniform(0, 1, (2, count))
    angle = rng.uniform(0, np.pi, count)
    cosine, sine = _planes(np.cos(angle)), _planes(np.sin(angle))
    dx, dy = across - _planes(x), down - _planes(y)
    along = (dx * cosine + dy * sine) / _planes(length)
    aside = (dy * cosine - dx * sine) / _planes(width)
    # Fibres bend a little.
    aside = aside + _planes(np.where(kind == 1, rng.normal(0, 1.2, count), 0.0)) * along**2
    blobs = _planes(strength) * np.exp(-0.5 * (along**2 + aside**2))
    return np.asarray(blobs.sum(axis=0))


def _illumination(rng: np.random.Generator, size: int) -> Array:
    """A tilted plane and a vignette off centre, roughly in [-1, 1]."""
    across, down = grid(size)
    angle = rng.uniform(0, 2 * np.pi)
    tilt = (across - 0.5) * np.cos(angle) + (down - 0.5) * np.sin(angle)
    x, y = rng.uniform(0.2, 0.8, 2)
    spot = np.exp(-((across - x) ** 2 + (down - y) ** 2) / 0.18)
    return np.asarray(1.2 * tilt + 0.9 * spot - 0.4, dtype=np.float32)


def smooth_noise(rng: np.random.Generator, size: int, cells: int) -> Array:
    """Random texture with about `cells` bumps per side, of unit scale."""
    from scipy.ndimage import zoom

    coarse = rng.standard_normal((cells, cells), dtype=np.float32)
    return np.asarray(zoom(coarse, size / cells, order=1, mode="grid-wrap", grid_mode=True))
