"""Data of one's own: what they are called, and their network."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.config import (
    compose,
    from_run_config,
)


def test_data_of_ones_own_name_the_task_and_shape_the_network(tmp_path: Path) -> None:
    own = ["allow_code=[tests]", f"run_dir={tmp_path}/${{task.name}}"]
    study = compose(["privacy=none", "data.name=tests.studies.load", *own])
    assert (study.task.name, Path(study.run_dir).name) == ("studies", "studies")
    assert study.model._target_ == "dp_fedmed.models.small_network"
    images = compose(["privacy=sample", "data.name=tests.studies.load_images", *own])
    assert images.task.name == "images"
    assert images.model._target_ == "dp_fedmed.models.small_network", "no recipe of other data"
    masks = compose(["privacy=none", "task=cells", "data.name=my.load_masks", "allow_code=[my]"])
    assert (masks.task.name, masks.model._target_) == ("masks", "dp_fedmed.models.UNet")
    given = compose([*own, "data.name=tests.studies.load", "model._target_=dp_fedmed.models.MLP"])
    assert given.model._target_ == "dp_fedmed.models.MLP"
    file = compose(["privacy=none", "task=medmnist", "data.path=/data/chest 2024.npz"])
    assert file.task.name == "chest_2024"
    assert file.model._target_ == "dp_fedmed.models.SmallCNN"
    assert compose(["privacy=none", "data.name=digits"]).task.name == "digits"
    assert compose([*own, "data.name=tests.studies.load", "task.name=trial"]).task.name == "trial"
    words = "data.name=tests.studies.load_images allow_code=[tests]"
    flower = from_run_config({"task": "breast_cancer", "privacy": "sample", "overrides": words})
    assert flower.task == images.task
    assert flower.model == images.model
    assert flower.run_dir.endswith("_images_sample")
