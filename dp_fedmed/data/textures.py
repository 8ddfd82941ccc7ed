"""Generated surfaces for anomaly detection: woven, metal and tissue-like, with marked defects.

Nothing here is anybody's data, so anomaly runs and tests need no download, and whatever is learnt
from these images may count as public. An image depends only on (seed, part, number, size).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.cells import grid, smooth_noise, to_bytes
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import stratified_cut
from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.streams.reproducible import stream

CATEGORIES = ("woven", "metal", "tissue")
DEFECTS = ("scratch", "hole", "stain")
# Every second test image is normal.
_KINDS = (0, 1, 0, 2, 0, 3)


def load_textures(config: DataConfig, seed: int) -> DataSet:
    """``data.num_records`` RGB images of ``data.image_size`` pixels, a third of each category.

    Training and validation images are normal. Half of the test images (``data.test_fraction`` of
    all) have one defect. Masks hold 0 and the number of the defect's kind; ``site`` holds the
    category, for ``data.partition.name=natural``.

    >>> dataset = load_textures(DataConfig(num_records=60, image_size=32), seed=0)
    >>> dataset.train.x.shape, int(dataset.train.y.max()), dataset.class_names
    ((39, 3, 32, 32), 0, ('normal', 'scratch', 'hole', 'stain'))
    """
    n, size = config.num_records, config.image_size
    num_test = max(2 * len(CATEGORIES), round(n * config.test_fraction))
    num_val = max(1, round(n * config.val_fraction))
    if num_test + num_val >= n or size < 16:
        raise ConfigError(
            f"data.num_records={n} with data.image_size={size} is too small for textures: use "
            f"data.num_records={max(n, num_test + num_val + 12)} and data.image_size=64"
        )
    normal = normal_images(n - num_test, size, seed)
    val, train = stratified_cut(
        np.asarray(normal.site), (num_val,), seed=seed, purpose="textures-val"
    )
    return DataSet(
        normal.subset(train),
        normal.subset(val),
        tested_images(num_test, size, seed),
        num_classes=1 + len(DEFECTS),
        class_names=("normal", *DEFECTS),
        site_names=CATEGORIES,
    )


def normal_images(n: int, size: int, seed: int) -> Records:
    """Images without a defect, the categories in turn.

    >>> normal_images(4, 32, seed=0).site
    array([0, 1, 2, 0])
    """
    x = np.empty((n, 3, size, size), np.uint8)
    for i in range(n):
        rng = stream(seed, "textures", "normal", size, i)
        x[i] = to_bytes(_SURFACES[i % len(CATEGORIES)](rng, size))
    return Records(x, np.zeros((n, size, size), np.uint8), np.arange(n) % len(CATEGORIES))


def tested_images(n: int, size: int, seed: int) -> Records:
    """Images of which every second one has a defect, the categories in turn."""
    x = np.empty((n, 3, size, size), np.uint8)
    y = np.zeros((n, size, size), np.uint8)
    for i in range(n):
        rng = stream(seed, "textures", "test", size, i)
        surface = _SURFACES[i % len(CATEGORIES)](rng, size)
        kind = _KINDS[i // len(CATEGORIES) % len(_KINDS)]
        if kind:
            surface, mask = _DAMAGE[kind - 1](rng, surface)
            y[i] = kind * mask
        x[i] = to_bytes(surface)
    return Records(x, y, np.arange(n) % len(CATEGORIES))


def _woven(rng: np.random.Generator, size: int) -> Array:
    """Two crossing sets of threads, of which the upper one changes as in a plain weave."""
    u, v = _turned(*grid(size), rng.uniform(-0.04, 0.04))
    bend = 0.012 * smooth_noise(rng, size, 4)
    threads = 11.0 + rng.uniform(-0.4, 0.4)
    warp, weft = threads * (u + bend) + rng.random(), threads * (v - bend) + rng.random()
    over = (np.floor(warp) + np.floor(weft)) % 2
    height = np.sin(np.pi * (np.where(over > 0, warp, weft) % 1.0))
    height = height + 0.12 * rng.standard_normal((size, size), dtype=np.float32)
    tint = np.array([0.62, 0.52, 0.38]) + rng.normal(0, 0.02, 3)
    return np.asarray(tint[:, None, None] * (0.55 + 0.5 * height) * _lighting(rng, size))


def _metal(rng: np.random.Generator, size: int) -> Array:
    """Fine parallel brush marks under a soft reflection."""
    from scipy.ndimage import gaussian_filter1d

    grain = rng.standard_normal((2, size, size), dtype=np.float32)
    long = gaussian_filter1d(grain[0], size / 6, axis=1, mode="wrap")
    short = gaussian_filter1d(grain[1], size / 24, axis=1, mode="wrap")
    marks = long / long.std() + 0.5 * short / short.std()
    shine = np.exp(-(((grid(size)[1] - rng.uniform(0.2, 0.8)) / 0.5) ** 2))
    tint = np.array([0.55, 0.57, 0.60]) + rng.normal(0, 0.01, 3)
    shade = 0.85 + 0.25 * shine + 0.07 * marks
    return np.asarray(tint[:, None, None] * shade * _lighting(rng, size))


def _tissue(rng: np.random.Generator, size: int) -> Array:
    """Pink fibres and scattered dark nuclei, as in a stained section."""
    u, _ = _turned(*grid(size), rng.uniform(-np.pi, np.pi))
    fibre = np.sin(2 * np.pi * (6.0 * u + 0.7 * smooth_noise(rng, size, 5)))
    ground = 0.5 * fibre + 0.5 * smooth_noise(rng, size, 12)
    count = int(rng.integers(16, 24))
    x, y = rng.random((2, count, 1, 1))
    reach = 0.022 * rng.uniform(0.8, 1.2, (count, 1, 1))
    across, down = grid(size)
    near = ((across - x) ** 2 + (down - y) ** 2) / reach**2
    nuclei = np.exp(-0.5 * near.min(axis=0) ** 2)
    pink = np.array([0.86, 0.62, 0.74]) + rng.normal(0, 0.012, 3)
    purple = np.array([0.42, 0.28, 0.55])[:, None, None]
    base = pink[:, None, None] * (1.0 + 0.07 * ground)
    return np.asarray((base + nuclei * (purple - base)) * _lighting(rng, size))


def _scratch(rng: np.random.Generator, surface: Array) -> tuple[Array, Array]:
    """A thin, slightly bent line, brighter or darker than what it crosses."""
    size = surface.shape[-1]
    along, aside = _local_axes(rng, size)
    aside = aside + rng.uniform(-0.9, 0.9) * along**2
    width = 0.013 * rng.uniform(0.8, 1.4)
    depth = np.exp(-0.5 * (aside / width) ** 2) * (abs(along) < rng.uniform(0.18, 0.35))
    strength = rng.choice((-1.0, 1.0)) * rng.uniform(0.22, 0.35)
    return surface + strength * depth, depth > 0.3


def _hole(rng: np.random.Generator, surface: Array) -> tuple[Array, Array]:
    """A dark opening with a raised rim."""
    size = surface.shape[-1]
    along, aside = _local_axes(rng, size)
    angle = np.arctan2(aside, along)
    radius = rng.uniform(0.05, 0.09) * (1 + 0.2 * np.sin(3 * angle + rng.uniform(0, 2 * np.pi)))
    depth = 1.0 - np.hypot(along, aside * rng.uniform(1.0, 1.5)) / radius
    inside = np.clip(4.0 * depth, 0.0, 1.0)
    rim = np.exp(-((depth + 0.12) ** 2) / 0.02)
    return surface * (1 - 0.8 * inside) + 0.12 * rim, depth > -0.15


def _stain(rng: np.random.Generator, surface: Array) -> tuple[Array, Array]:
    """A spot with an uneven edge that changes the colour and lets the texture through."""
    size = surface.shape[-1]
    along, aside = _local_axes(rng, size)
    spread = np.hypot(along, aside * rng.uniform(1.0, 1.6)) / rng.uniform(0.1, 0.18)
    cover = 1.0 / (1.0 + np.exp(9.0 * (spread - 1.0 + 0.22 * smooth_noise(rng, size, 6))))
    tint = 1.0 + rng.choice((-1.0, 1.0)) * rng.uniform(0.15, 0.35, 3)
    return surface * (1 + cover * (tint[:, None, None] - 1)), cover > 0.4


_SURFACES: tuple[Callable[[np.random.Generator, int], Array], ...] = (_woven, _metal, _tissue)
_DAMAGE: tuple[Callable[[np.random.Generator, Array], tuple[Array, Array]], ...]
_DAMAGE = (_scratch, _hole, _stain)


def _local_axes(rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """Coordinates along and across a random direction, from a random point well inside."""
    x, y = rng.uniform(0.2, 0.8, 2)
    across, down = grid(size)
    return _turned(across - x, down - y, rng.uniform(0, np.pi))


def _turned(x: Array, y: Array, angle: float) -> tuple[Array, Array]:
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)


def _lighting(rng: np.random.Generator, size: int) -> Array:
    """A slight tilt of the brightness, and the camera's noise."""
    tilt = rng.normal(0, 0.05, 2)
    across, down = grid(size)
    light = 1.0 + tilt[0] * (across - 0.5) + tilt[1] * (down - 0.5)
    noise = rng.standard_normal((size, size), dtype=np.float32)
    return np.asarray(light * rng.uniform(0.95, 1.05) + 0.012 * noise)
