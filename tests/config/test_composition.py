"""The configuration: typed, validated once, and helpful about mistakes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import dp_fedmed
from dp_fedmed.cli import main
from dp_fedmed.config import (
    compose,
    conf_dir,
    from_run_config,
    from_yaml,
    settings,
)
from dp_fedmed.config.composition import RUN_CONFIG_DEFAULTS
from dp_fedmed.errors import ConfigError


def test_every_choice_of_every_group_composes() -> None:
    for group in ("privacy", "federation", "engine", "training", "task"):
        for file in (conf_dir() / group).glob("*.yaml"):
            assert compose([f"{group}={file.stem}"])


def test_scientific_notation_without_a_dot_is_a_float(tmp_path: Path) -> None:
    assert compose(["training.lr=1e-5"]).training.lr == 1e-5
    assert compose(["federation.server_tau='1e-5'"]).federation.server_tau == 1e-5
    assert compose(["model.args.eps=1e-5"]).model.args["eps"] == 1e-5


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("federation.num_round=3", "did you mean 'federation.num_rounds'"),
        ("lr=3", "did you mean 'training.lr'"),
        ("task=digit", "did you mean 'digits'"),
        ("training=fast", "choose from images, segmentation, tabular"),
        ("training.lr=fast", "training.lr=fast"),
        ("training.lr=nan", "training.lr=nan is not a finite number"),
        ("training.lr=-1", "training.lr=-1.0 is out of range"),
        ("training.lr=0", "give a value from 1e-12 to 1000"),
        ("seed=1.5", "seed=1.5"),
        ("federation.num_clients=1e3", "federation.num_clients"),
        ("model.fix=maybe", "model.fix=maybe"),
        ("federation.server_optimizer=foo", "fedavg, fedavgm, fedadam"),
        ("data.partition.skew=cubic", "linear, square, exponential"),
        ("training.device=tpu", "auto, cpu, cuda"),
        ("task.metric=dice", "accuracy, balanced_accuracy"),
        ("task.loss=dice_ce", "task.kind=classification"),
        ("model._target_=MyNet", "dotted import path"),
        ("just a word", "write key=value"),
        ("+made.up=1", "unknown key 'made.up'"),
        ("privacy=smaple", "did you mean 'sample'"),
    ],
)
def test_a_mistake_names_the_key_and_a_way_out(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_flower_run_config_composes_the_same_tree(tmp_path: Path) -> None:
    folder = f"{tmp_path}/a run, with = signs"
    run_config = {
        "task": "digits",
        "privacy": "none",
        "federation": "",
        "overrides": "federation.num_rounds=3 model.args.channels='[4, 8]'",
        "run-dir": folder,
    }
    from_flower = from_run_config(run_config)
    from_hydra = compose(
        [
            *("task=digits", "privacy=none", "federation.num_rounds=3"),
            *("model.args.channels=[4,8]", "run_dir=/x"),
        ]
    )
    assert from_flower.run_dir == folder
    assert dataclasses.replace(from_flower, run_dir="/x") == from_hydra


def test_a_run_config_without_a_run_dir_does_not_write_into_flowers_bundle() -> None:
    chosen = Path(from_run_config({"task": "digits"}).run_dir)
    assert chosen.is_absolute()
    assert chosen.is_relative_to(Path.home())


def test_an_unbalanced_quote_in_overrides_is_named() -> None:
    with pytest.raises(ConfigError, match="'overrides' cannot be split"):
        from_run_config({"overrides": "seed='1"})


def test_a_recipe_comes_with_its_pair_and_can_be_left_out() -> None:
    tuned = compose(["task=digits", "privacy=sample"])
    plain = compose(["task=digits", "privacy=sample", "recipe=none"])
    assert tuned.model._target_ != plain.model._target_ == "dp_fedmed.models.SmallCNN"
    assert compose(["task=digits", "privacy=sample", "training.lr=7"]).training.lr == 7
    assert compose(["task=digits", "privacy=none"]).model._target_ == "dp_fedmed.models.SmallCNN"


def test_nothing_is_trained_without_a_guarantee_unless_somebody_says_so() -> None:
    for config in (compose(), compose(["task=textures"]), from_run_config({"task": "digits"})):
        assert (config.privacy.style, config.privacy.sample.target_epsilon) == ("sample", 3.0)
    assert {"task": compose().task.name, "privacy": "sample"} == RUN_CONFIG_DEFAULTS


def test_flowers_defaults_are_those_of_pyproject() -> None:
    import tomllib

    content = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    given = content["tool"]["flwr"]["app"]["config"]
    assert {key: value for key, value in given.items() if value} == RUN_CONFIG_DEFAULTS


def test_what_the_user_names_wins_over_a_recipe() -> None:
    tuned = compose(["task=digits", "privacy=sample"])
    assert tuned.model._target_.endswith("ScatteringLinear")
    named = compose(["task=digits", "privacy=sample", "federation=cross_device"])
    assert named.federation.num_rounds == 50
    assert named.training.lr == tuned.training.lr
    both = compose(
        ["task=digits", "privacy=sample", "federation=cross_device", "federation.num_rounds=7"]
    )
    assert both.federation.num_rounds == 7
    hidden = compose(["task=digits", "privacy=user", "federation=cross_device"])
    assert hidden.federation.weighting == "uniform", "what the style needs is not the recipe's"
    own = compose(["task=digits", "privacy=sample", "model._target_=dp_fedmed.models.SmallCNN"])
    plain = compose(["task=digits", "privacy=sample", "recipe=none"])
    assert own.training == plain.training
    assert own.privacy == plain.privacy


def test_a_group_of_ones_own_wins_over_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.yaml").write_text("lr: 0.01\n")
    words = [f"hydra.searchpath=['file://{tmp_path}']", "training=mine", "privacy=sample"]
    assert compose(words).training.lr == 0.01
    assert compose(["privacy=sample"]).training.lr != 0.01


def test_any_key_of_a_models_arguments_is_read_back() -> None:
    config = compose(
        ["model.args.anything={a: [1], b: null}", "model._target_=dp_fedmed.models.MLP"]
    )
    assert from_yaml(config.to_yaml()) == config


def test_config_imports_no_other_room_and_one_file_imports_private_modules() -> None:
    package = Path(dp_fedmed.__file__).parent
    private = [file.name for file in package.rglob("*.py") if "hydra._internal" in file.read_text()]
    assert private == ["hydra_compat.py"]
    for file in (package / "config").glob("*.py"):
        rooms = re.findall(r"(?:from|import) dp_fedmed\.(\w+)", file.read_text())
        rooms += re.findall(r"from dp_fedmed import (\w+)", file.read_text())
        assert set(rooms) <= {"config", "errors", "version"}, file.name


def test_help_lists_every_setting_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for key, known in settings().items():
        assert re.search(rf"^ *{re.escape(key)} +{re.escape(known.meaning)}", shown, re.M), key


@pytest.mark.parametrize(
    ("words", "trusted", "noise"),
    [
        (["task=textures", "privacy=sample"], "true", "server"),
        (["task=textures", "privacy=sample"], "false", None),
        (["task=textures", "privacy=user"], "true", None),
        (["task=textures", "privacy=sample", "federation=centralized"], "true", None),
        (["task=textures", "privacy=sample", "anomaly.mechanism=noisy_rows"], "true", None),
        (["privacy=sample"], "true", None),
    ],
)
def test_runs_that_knew_a_trusted_server_are_still_read(
    words: list[str], trusted: str, noise: str | None
) -> None:
    text = compose(words).to_yaml()
    old = text.replace("anomaly:\n", f"anomaly:\n  server_trusted: {trusted}\n")
    old = old.replace("  noise: null\n", "")
    assert "server_trusted" in old
    assert "  noise: " not in old
    assert from_yaml(old).privacy.noise == noise
