import json

import numpy as np
import pytest
from PIL import Image

from dp_fedmed.config import DataConfig
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError


def save(file, array):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(file)


def write(folder, n=10, *, part="Tr", ids=(0, 255), size=(24, 20), colour=False, channels=1):
    rng = np.random.Generator(np.random.Philox(n))
    for i in range(n):
        mask = rng.choice(np.array(ids, np.uint8), size)
        mask.flat[: len(ids)] = ids
        save(folder / f"labels{part}" / f"case_{i}.png", mask)
        for channel in range(channels):
            shape = (*size, 3) if colour else size
            pixels = rng.integers(0, 256, shape).astype(np.uint8)
            save(folder / f"images{part}" / f"case_{i}_{channel:04d}.png", pixels)


def load(folder, image_size=16, **options):
    config = DataConfig(name="nnunet_folder", path=str(folder), image_size=image_size, **options)
    return load_data(config, seed=0)


def refuse(folder, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load(folder)
    assert "data.path" in str(caught.value)
    assert str(folder) not in str(caught.value)


def test_a_binary_folder(tmp_path):
    write(tmp_path)
    dataset = load(tmp_path)
    assert [len(part) for part in dataset.parts().values()] == [6, 2, 2]
    assert dataset.input_shape == (1, 16, 16)
    assert dataset.train.x.dtype == dataset.train.y.dtype == np.uint8
    assert set(np.unique(dataset.train.y)) == {0, 1}
    assert dataset.class_names == ("background", "foreground")


@pytest.mark.parametrize(
    ("colour", "channels", "expected"), [(False, 1, 1), (True, 1, 3), (False, 2, 2)]
)
def test_channels(tmp_path, colour, channels, expected):
    write(tmp_path, colour=colour, channels=channels)
    assert load(tmp_path).input_shape == (expected, 16, 16)


def test_images_and_masks_stay_together_and_keep_their_values(tmp_path):
    for i in range(6):
        value = 10 + 40 * i
        mask = np.zeros((16, 16), np.uint8)
        mask[: i + 1] = 1
        save(tmp_path / "labelsTr" / f"c{i}.png", mask)
        save(tmp_path / "imagesTr" / f"c{i}_0000.png", np.full((16, 16), value, np.uint8))
    dataset = load(tmp_path)
    seen = []
    for part in dataset.parts().values():
        for image, mask in zip(part.x, part.y, strict=True):
            i = (int(image[0, 0, 0]) - 10) // 40
            seen.append(i)
            assert mask.sum() == 16 * (i + 1)
    assert sorted(seen) == list(range(6))


def test_resizing_invents_no_classes(tmp_path):
    write(tmp_path, ids=(0, 2), size=(37, 53))
    save(tmp_path / "labelsTr" / "case_0.png", np.ones((37, 53), np.uint8))
    dataset = load(tmp_path)
    assert dataset.num_classes == 3
    masks = [mask for part in dataset.parts().values() for mask in part.y]
    found = [set(np.unique(mask).tolist()) for mask in masks]
    assert found.count({0, 2}) == 9, "between 0 and 2 there is no 1"
    assert found.count({1}) == 1
    assert dataset.class_names == ("background", "class 1", "class 2")


def test_a_test_folder_is_used_as_it_is(tmp_path):
    write(tmp_path, 8)
    write(tmp_path, 3, part="Ts")
    dataset = load(tmp_path, val_fraction=0.25)
    assert [len(part) for part in dataset.parts().values()] == [6, 2, 3]


def test_test_images_without_labels_are_left_alone(tmp_path):
    write(tmp_path, 10)
    save(tmp_path / "imagesTs" / "x_0000.png", np.zeros((4, 4), np.uint8))
    assert len(load(tmp_path).test) == 2


@pytest.mark.parametrize(
    "labels", [{"background": 0, "membrane": 1}, {"0": "background", "1": "membrane"}]
)
def test_class_names_come_from_dataset_json(tmp_path, labels):
    write(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels}))
    assert load(tmp_path).class_names == ("background", "membrane")


def test_sixteen_bit_images_become_bytes(tmp_path):
    write(tmp_path, 5)
    for file in (tmp_path / "imagesTr").iterdir():
        save(file, np.full((24, 20), 65535, np.uint16))
    assert load(tmp_path).train.x.min() == 255


def test_a_missing_label_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "labelsTr" / "case_3.png").unlink()
    refuse(tmp_path, r"labelsTr/case_3\.png is missing")


def test_a_missing_channel_is_named(tmp_path):
    write(tmp_path, channels=2)
    (tmp_path / "imagesTr" / "case_3_0000.png").unlink()
    refuse(tmp_path, r"case_3_0001\.png: channel _0000")


def test_a_mask_of_another_size_is_named(tmp_path):
    write(tmp_path)
    save(tmp_path / "labelsTr" / "case_2.png", np.zeros((24, 21), np.uint8))
    refuse(tmp_path, r"case_2_0000\.png: the image has 20×24 pixels and its label 21×24")


@pytest.mark.parametrize("folder", ["imagesTr/case_1_0000.png", "labelsTr/case_1.png"])
@pytest.mark.parametrize("keep", [0, 20, 200])
def test_a_broken_png_is_named(tmp_path, folder, keep):
    write(tmp_path, size=(64, 64))
    file = tmp_path / folder
    file.write_bytes(file.read_bytes()[:keep])
    refuse(tmp_path, f"{folder}.*cannot be read")


@pytest.mark.parametrize(
    ("ids", "says"),
    [((0, 1, 255), "mixes 255"), ((0, 2), r"\[0, 2\].*contiguous"), ((0,), "two or more")],
)
def test_odd_class_ids_are_refused(tmp_path, ids, says):
    write(tmp_path, ids=ids)
    refuse(tmp_path, says)


def test_two_meanings_of_foreground_are_refused(tmp_path):
    write(tmp_path, ids=(0, 1, 2))
    save(tmp_path / "labelsTr" / "case_0.png", np.full((24, 20), 255, np.uint8))
    refuse(tmp_path, "what 255 means")


def test_other_misfits_are_named(tmp_path):
    refuse(tmp_path, "imagesTr and labelsTr")
    write(tmp_path)
    save(tmp_path / "imagesTr" / "odd.png", np.zeros((4, 4), np.uint8))
    refuse(tmp_path, r"odd\.png.*channel number")
    (tmp_path / "imagesTr" / "odd.png").unlink()
    save(tmp_path / "labelsTr" / "case_4.png", np.zeros((24, 20, 3), np.uint8))
    refuse(tmp_path, r"case_4\.png.*mode RGB")
    save(tmp_path / "labelsTr" / "case_4.png", np.zeros((24, 20), np.uint8))
    save(tmp_path / "imagesTr" / "case_4_0000.png", np.zeros((24, 20, 3), np.uint8))
    refuse(tmp_path, r"case_4_0000\.png.*3 channels")


def test_an_empty_folder_and_too_few_images(tmp_path):
    (tmp_path / "imagesTr").mkdir()
    (tmp_path / "labelsTr").mkdir()
    refuse(tmp_path, "imagesTr holds no .png")
    write(tmp_path, 2)
    with pytest.raises(ConfigError, match="2 records leave nothing to train on"):
        load(tmp_path)


def test_the_path_is_required():
    with pytest.raises(ConfigError, match=r"data\.path is not set"):
        load_data(DataConfig(name="nnunet_folder"), seed=0)


def test_the_real_membrane_set(shared_data):
    dataset = load(shared_data / "membrane", image_size=64)
    assert sum(len(part) for part in dataset.parts().values()) == 30
    assert dataset.num_classes == 2


def test_a_class_in_the_test_only_is_refused(tmp_path):
    write(tmp_path, ids=(0, 1))
    write(tmp_path, 3, part="Ts", ids=(0, 1, 2))
    refuse(tmp_path, r"labelsTs holds the class ids \[2\]")
    config = DataConfig(name="nnunet_folder", path=str(tmp_path), image_size=16)
    assert load_data(config, seed=0, at_site=True).num_classes == 3, "a site trains on all of it"
