import time

import numpy as np
import pytest

from dp_fedmed.config import DataConfig, PartitionConfig
from dp_fedmed.config.schema import PartitionName
from dp_fedmed.data import load_data, partition
from dp_fedmed.data.textures import CATEGORIES, DEFECTS, load_textures, normal_images
from dp_fedmed.errors import ConfigError


def textures(n=120, size=32, seed=0):
    return load_textures(
        DataConfig(name="dp_fedmed.data.textures.load_textures", num_records=n, image_size=size),
        seed,
    )


def test_shapes_types_and_names():
    dataset = textures()
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.train.x.dtype == dataset.train.y.dtype == np.uint8
    assert dataset.class_names == ("normal", *DEFECTS)
    assert dataset.site_names == CATEGORIES
    assert [len(part) for part in dataset.parts().values()] == [78, 18, 24]


def test_training_and_validation_are_normal_and_half_of_the_test_is_not():
    dataset = textures()
    assert not dataset.train.y.any()
    assert not dataset.val.y.any()
    kinds = dataset.test.image_labels
    assert np.count_nonzero(kinds) == len(kinds) // 2
    assert set(kinds.tolist()) == {0, 1, 2, 3}


def test_every_category_has_every_defect():
    dataset = textures(n=300)
    assert dataset.test.site is not None
    pairs = set(zip(dataset.test.site.tolist(), dataset.test.image_labels.tolist(), strict=True))
    assert len(pairs) == len(CATEGORIES) * (1 + len(DEFECTS))


def test_masks_mark_what_was_changed():
    dataset = textures(n=300, size=64)
    test, marked = dataset.test, dataset.test.y > 0
    for image, mask in zip(test.x[marked.any((1, 2))], marked[marked.any((1, 2))], strict=True):
        assert 0.002 < mask.mean() < 0.2
        grey = image.mean(axis=0)
        around = grey[~mask]
        # The defect stands out from its surroundings in some colour.
        gap = max(
            abs(image[c][mask].mean() - image[c][~mask].mean()) / image[c][~mask].std()
            for c in range(3)
        )
        assert gap > 0.2
        assert around.size > 0


def test_the_seed_decides():
    assert np.array_equal(textures(seed=1).test.x, textures(seed=1).test.x)
    assert not np.array_equal(textures(seed=1).test.x, textures(seed=2).test.x)


def test_an_image_does_not_depend_on_how_many_there_are():
    assert np.array_equal(normal_images(3, 32, 0).x, normal_images(9, 32, 0).x[:3])


def test_no_image_occurs_twice():
    images = [image.tobytes() for part in textures().parts().values() for image in part.x]
    assert len(set(images)) == 120


def test_by_category_and_by_dirichlet():
    dataset = load_data(
        DataConfig(name="dp_fedmed.data.textures.load_textures", num_records=120, image_size=32),
        seed=0,
    )
    parts = partition(dataset, PartitionConfig(name=PartitionName.natural), num_clients=3, seed=0)
    assert dataset.train.site is not None
    assert all(len(set(dataset.train.site[part].tolist())) == 1 for part in parts)
    skewed = partition(
        dataset, PartitionConfig(name=PartitionName.dirichlet, alpha=0.1), num_clients=3, seed=0
    )
    most = [np.bincount(dataset.train.site[part]).max() / len(part) for part in skewed]
    assert max(most) > 0.6


def test_the_default_set_is_made_quickly():
    started = time.process_time()
    textures(n=400, size=64)
    assert time.process_time() - started < 6.0


@pytest.mark.parametrize(("n", "size"), [(7, 64), (100, 8)])
def test_too_small_is_refused(n, size):
    with pytest.raises(ConfigError, match=r"data\.num_records=.*data\.image_size=64"):
        textures(n=n, size=size)
