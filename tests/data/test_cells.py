import time

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data import load_data
from dp_fedmed.data.cells import NUM_SITES, load_cells


def cells(n=60, size=32, seed=0):
    return load_cells(DataConfig(name="cells", num_records=n, image_size=size), seed)


def otsu(image):
    """The mask by Otsu's threshold."""
    histogram = np.bincount(image.ravel(), minlength=256) / image.size
    weight = np.cumsum(histogram)
    mean = np.cumsum(histogram * np.arange(256))
    between = (mean[-1] * weight - mean) ** 2 / (weight * (1 - weight) + 1e-12)
    return image > np.argmax(between)


def dice(a, b):
    return 2 * np.sum(a & b) / (a.sum() + b.sum())


def test_shapes_and_types():
    dataset = cells()
    assert dataset.train.x.shape == (39, 1, 32, 32)
    assert dataset.train.x.dtype == np.uint8
    assert dataset.train.y.dtype == np.uint8
    assert set(np.unique(dataset.train.y)) == {0, 1}
    assert [len(part) for part in dataset.parts().values()] == [39, 9, 12]


def test_the_seed_decides():
    one, two, other = cells(seed=1), cells(seed=1), cells(seed=2)
    assert np.array_equal(one.train.x, two.train.x)
    assert np.array_equal(one.train.y, two.train.y)
    assert not np.array_equal(one.train.x, other.train.x)


def test_no_image_occurs_twice():
    dataset = cells()
    images = [image.tobytes() for part in dataset.parts().values() for image in part.x]
    assert len(set(images)) == 60


def test_every_site_is_there_and_has_its_own_look():
    dataset = cells(n=240)
    sites = dataset.train.site
    assert sites is not None
    assert set(sites.tolist()) == set(range(NUM_SITES))
    levels = dataset.train.x.mean(axis=(1, 2, 3))
    within = np.mean([levels[sites == site].std() for site in range(NUM_SITES)])
    between = np.std([levels[sites == site].mean() for site in range(NUM_SITES)])
    assert between > within


def test_a_threshold_is_not_enough_but_better_than_nothing():
    dataset = load_data(DataConfig(name="cells", num_records=120, image_size=64), seed=0)
    scores = [
        dice(otsu(image[0]), mask > 0)
        for image, mask in zip(dataset.train.x, dataset.train.y, strict=True)
    ]
    assert 0.5 < np.mean(scores) < 0.75
    inside = dataset.train.x[:, 0][dataset.train.y > 0].mean()
    outside = dataset.train.x[:, 0][dataset.train.y == 0].mean()
    assert inside > outside + 5


def test_masks_cover_a_reasonable_part():
    share = cells(n=120).train.y.mean(axis=(1, 2))
    assert 0.1 < share.mean() < 0.4
    assert share.min() > 0.01


def test_the_smallest_and_a_large_set_can_be_made():
    assert len(cells(n=3, size=8).train) == 1
    assert cells(n=4, size=200).input_shape == (1, 200, 200)


def test_generation_is_quick():
    cells(n=3)
    started = time.perf_counter()
    cells(n=240, size=64)
    assert time.perf_counter() - started < 4.0, "0.5 s on an idle core"
