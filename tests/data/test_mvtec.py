import numpy as np
import pytest
from PIL import Image

from dp_fedmed.config import DataConfig
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError


def save(file, array):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(file)


def write(folder, *, train=8, size=(24, 20), colour=False, kinds=("crack", "spot")):
    rng = np.random.Generator(np.random.Philox(train))
    shape = (*size, 3) if colour else size

    def image():
        return rng.integers(0, 256, shape).astype(np.uint8)

    for i in range(train):
        save(folder / "train/good" / f"{i:03d}.png", image())
    for i in range(3):
        save(folder / "test/good" / f"{i:03d}.png", image())
    for kind in kinds:
        for i in range(2):
            save(folder / "test" / kind / f"{i:03d}.png", image())
            mask = np.zeros(size, np.uint8)
            mask[2:9, 3:8] = 255
            save(folder / "ground_truth" / kind / f"{i:03d}_mask.png", mask)


def load(folder, image_size=16):
    config = DataConfig(
        name="dp_fedmed.data.mvtec.load_mvtec_folder", path=str(folder), image_size=image_size
    )
    return load_data(config, seed=0)


def refuse(folder, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load(folder)
    assert "data." in str(caught.value)
    assert str(folder.parent) not in str(caught.value)


@pytest.mark.parametrize(("colour", "channels"), [(False, 1), (True, 3)])
def test_one_category(tmp_path, colour, channels):
    write(tmp_path, colour=colour)
    dataset = load(tmp_path)
    assert dataset.input_shape == (channels, 16, 16)
    assert [len(part) for part in dataset.parts().values()] == [7, 1, 7]
    assert dataset.class_names == ("normal", "crack", "spot")
    assert dataset.site_names == (tmp_path.name,)
    assert not dataset.train.y.any()
    assert not dataset.val.y.any()
    assert np.bincount(dataset.test.image_labels).tolist() == [3, 2, 2]
    assert set(np.unique(dataset.test.y)) == {0, 1, 2}


def test_a_folder_of_categories(tmp_path):
    write(tmp_path / "bolt", kinds=("crack",))
    write(tmp_path / "nut", kinds=("spot",), train=4)
    (tmp_path / "notes").mkdir()
    dataset = load(tmp_path)
    assert dataset.site_names == ("bolt", "nut")
    assert dataset.class_names == ("normal", "crack", "spot")
    assert dataset.test.site is not None
    assert np.bincount(dataset.test.site).tolist() == [5, 5]


def test_grey_and_coloured_images_mix(tmp_path):
    write(tmp_path)
    save(tmp_path / "train/good/colour.png", np.zeros((24, 20, 3), np.uint8))
    assert load(tmp_path).input_shape == (3, 16, 16)


def test_a_tiny_defect_keeps_a_pixel(tmp_path):
    write(tmp_path, size=(200, 200))
    mask = np.zeros((200, 200), np.uint8)
    mask[100, 50] = 255
    save(tmp_path / "ground_truth/crack/000_mask.png", mask)
    test = load(tmp_path, image_size=8).test
    first = np.flatnonzero(test.image_labels == 1)[0]
    assert np.argwhere(test.y[first]).tolist() == [[4, 2]]


def test_an_empty_mask_still_counts_as_a_defective_image(tmp_path, caplog):
    write(tmp_path)
    save(tmp_path / "ground_truth/crack/000_mask.png", np.zeros((24, 20), np.uint8))
    test = load(tmp_path).test
    assert np.bincount(test.image_labels).tolist() == [3, 2, 2]
    assert "marks no pixel" in caplog.text


def test_several_masks_of_one_image_are_united(tmp_path):
    write(tmp_path)
    (tmp_path / "ground_truth/crack/000_mask.png").unlink()
    for name, columns in (("a", slice(0, 5)), ("b", slice(15, 20))):
        mask = np.zeros((24, 20), np.uint8)
        mask[:, columns] = 255
        save(tmp_path / f"ground_truth/crack/000/{name}.png", mask)
    test = load(tmp_path, image_size=20).test
    first = test.y[np.flatnonzero(test.image_labels == 1)[0]]
    assert np.flatnonzero(first.all(axis=0)).tolist() == [*range(5), *range(15, 20)]


def test_no_path():
    with pytest.raises(ConfigError, match=r"data\.path is not set"):
        load_data(DataConfig(name="dp_fedmed.data.mvtec.load_mvtec_folder"), seed=0)


def test_not_a_folder(tmp_path):
    refuse(tmp_path / "nowhere", "is not a folder")


def test_an_empty_folder(tmp_path):
    refuse(tmp_path, "neither train/good")


def test_no_training_image(tmp_path):
    write(tmp_path, train=1)
    (tmp_path / "train/good/000.png").unlink()
    refuse(tmp_path, "train/good holds no image")


def test_no_test(tmp_path):
    save(tmp_path / "train/good/0.png", np.zeros((8, 8), np.uint8))
    refuse(tmp_path, "test is missing")


def test_no_defects(tmp_path):
    write(tmp_path, kinds=())
    refuse(tmp_path, "one folder or more of defects")


def test_a_missing_mask(tmp_path):
    write(tmp_path)
    (tmp_path / "ground_truth/spot/001_mask.png").unlink()
    refuse(tmp_path, r"spot/001_mask\.png is missing")


def test_a_mask_of_another_size(tmp_path):
    write(tmp_path)
    save(tmp_path / "ground_truth/spot/001_mask.png", np.full((9, 9), 255, np.uint8))
    refuse(tmp_path, r"the mask has 9×9 pixels and its image 20×24")


@pytest.mark.parametrize("file", ["train/good/003.png", "ground_truth/spot/000_mask.png"])
def test_a_truncated_image(tmp_path, file):
    write(tmp_path, size=(64, 64))
    data = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(data[: len(data) // 2])
    refuse(tmp_path, "damaged or cut short")


def test_a_text_file_named_png(tmp_path):
    write(tmp_path)
    (tmp_path / "test/good/000.png").write_text("hello")
    refuse(tmp_path, "damaged or cut short")


def test_a_single_training_image(tmp_path):
    write(tmp_path, train=1)
    refuse(tmp_path, "leaves nothing to train on")


def test_a_site_may_hold_normal_images_only(tmp_path):
    write(tmp_path, train=10)
    config = DataConfig(name="mvtec_folder", path=str(tmp_path), image_size=16)
    assert load_data(config, seed=0, at_site=True).class_names == ("normal", "crack", "spot")
    for part in ("test", "ground_truth"):
        (tmp_path / part).rename(tmp_path.parent / f"{tmp_path.name}_{part}")
    alone = DataConfig(name="mvtec_folder", path=str(tmp_path), image_size=20)
    data = load_data(alone, seed=0, at_site=True)
    assert (len(data.train), len(data.val)) == (8, 2)
    assert data.test.x.tobytes() == data.val.x.tobytes()
    assert data.class_names == ("normal",)
    with pytest.raises(ConfigError, match="test is missing"):
        load_data(alone, seed=0)
