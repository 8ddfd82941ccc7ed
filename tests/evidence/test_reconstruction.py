"""What a curious server can rebuild of a site's images, from real rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.assemble import make_work
from dp_fedmed.cli import main
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence import bank_reconstruction, reconstruction
from dp_fedmed.evidence.bank_reconstruction import look_into_answer, mosaics
from dp_fedmed.evidence.curious_server import observe
from dp_fedmed.evidence.gradient_inversion import inferred_labels
from dp_fedmed.evidence.reconstruction import (
    compose_for,
    rebuild,
    refuse_private_data,
    sized_for_attack,
    without_update,
)
from dp_fedmed.evidence.reconstruction_plots import plot_reconstruction
from dp_fedmed.learning.networks.learner import NetworkWork


def row_of(style: str, *overrides: str) -> tuple[reconstruction.Row, np.ndarray, object]:
    config = compose_for(overrides, reconstruction.STYLES[style])
    config = sized_for_attack(config, overrides)
    row, originals, _ = rebuild(config, style, lambda count: None)
    return row, originals, config


def test_without_privacy_images_are_rebuilt_and_with_noise_at_the_site_they_are_not() -> None:
    clear, originals, config = row_of("none")
    assert len(originals) == 8
    assert clear.to_json()["psnr"] > 20
    assert clear.to_json()["ssim"] > 0.9
    guess = without_update(config, originals).to_json()
    noised, same, _ = row_of("sample, ε = 8")
    np.testing.assert_array_equal(same, originals)
    assert noised.to_json()["psnr"] < guess["psnr"]
    assert noised.to_json()["ssim"] < 0.4


def test_style_user_hides_nothing_from_the_server_and_hybrid_does() -> None:
    answers = {}
    for style in ("none", "user, ε = 8", "hybrid, ε = 3"):
        config = sized_for_attack(compose_for((), reconstruction.STYLES[style]), ())
        answers[style] = observe(config).answers[0]
    for name, array in answers["none"].items():
        np.testing.assert_array_equal(answers["user, ε = 8"][name], array)
        assert not np.allclose(answers["hybrid, ε = 3"][name], array, atol=1e-3)


def test_labels_are_read_off_the_last_bias(caplog: pytest.LogCaptureFixture) -> None:
    config = sized_for_attack(compose_for((), ("privacy=none",)), ())
    seen = observe(config)
    assert "nobody asked for" not in caplog.text, "every reply belongs to a message"
    work = make_work(config)
    assert isinstance(work, NetworkWork)
    work.build((1, 8, 8), 10)
    work.state.load(seen.sent)
    found = inferred_labels(
        work.model, seen.answers[0], records=8, num_classes=10, input_shape=(1, 8, 8), lr=0.1
    )
    assert found is not None
    assert found.tolist() == sorted(seen.records.y.tolist())


def test_a_memory_bank_holds_patches_as_they_are_and_a_noised_statistic_holds_none() -> None:
    small = (
        "task=textures",
        "data.num_records=60",
        "data.image_size=32",
        *bank_reconstruction.SITE_NOISE,
    )
    small += ("federation.num_clients=3", "anomaly.coreset_size=300")
    rows = {}
    for style in ("none", "sample, ε = 8"):
        config = compose_for(small, bank_reconstruction.STYLES[style])
        rows[style], seen = look_into_answer(config, style)
    bank, noised = rows["none"], rows["sample, ε = 8"]
    assert bank.given_away.sum() >= 300
    assert bank.nearest < bank.held_out
    assert noised.given_away.sum() == 0
    assert noised.numbers < bank.numbers
    images = seen.records.x / 255.0
    shown = mosaics(images, bank.given_away)
    assert (shown == images).all(axis=1).mean() == pytest.approx(bank.given_away.mean(), abs=0.02)


def test_pictures_of_records_need_permission_unless_the_data_are_public() -> None:
    private = compose_for(("task=fashion_mnist", "data.path=/data"), ("privacy=none",))
    with pytest.raises(ConfigError, match="--show-records"):
        refuse_private_data(private, show_records=False)
    refuse_private_data(private, show_records=True)
    refuse_private_data(compose_for((), ("privacy=none",)), show_records=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy=sample"], "compares the privacy styles by itself"),
        (["run_dir=/runs/x"], "leave it out"),
        (["task=cells"], "masks instead of classes"),
        (["task=breast_cancer"], "--show-records"),
        (["--show-records", "task=breast_cancer"], "has no images"),
        (["training.optimizer=adam"], "training.optimizer=sgd"),
        (["federation.num_clients=5"], "federation.num_clients=146"),
        (["task=digit"], "did you mean 'digits'"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_in_one_sentence(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reconstruct", *words]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_picture_and_figures_without_records(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reconstruction, "STYLES", {"none": ("privacy=none",)} | {
        "sample, ε = 1": reconstruction.STYLES["sample, ε = 1"]
    })  # fmt: skip
    monkeypatch.setattr(reconstruction, "STEPS", 40)
    assert main(["reconstruct"]) == 0
    assert "Without privacy the server rebuilds" in capsys.readouterr().out.replace("\n", " ")
    assert (tmp_path / "reconstruction.png").stat().st_size > 5_000
    report = json.loads((tmp_path / "reconstruction.json").read_text())
    assert [row["style"] for row in report["rows"]] == ["none", "sample, ε = 1", "no update at all"]
    assert set(report["rows"][0]) == {
        *("style", "psnr", "ssim", "psnr_by_record", "ssim_by_record"),
    }


def test_colour_images_are_drawn(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 3, 8, 8))
    plot_reconstruction([("a", "b", images), ("c", "d", images)], "title", tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()
