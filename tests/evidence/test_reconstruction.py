"""What a curious server can rebuild of a site's images, from real rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence import reconstruction
from dp_fedmed.evidence.curious_server import observe
from dp_fedmed.evidence.reconstruction import (
    compose_for,
    plot_reconstruction,
    rebuild,
    refuse_private_data,
    sized_for_attack,
    without_update,
)


def row_of(style: str, *overrides: str) -> tuple[reconstruction.Row, np.ndarray, object]:
    config = compose_for(overrides, reconstruction.STYLES[style])
    config = sized_for_attack(config, overrides)
    row, originals = rebuild(config, style, lambda count: None)
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


def test_pictures_of_records_need_permission_unless_the_data_are_public() -> None:
    private = compose_for(("task=fashion_mnist", "data.path=/data"), ("privacy=none",))
    with pytest.raises(ConfigError, match="--show-records"):
        refuse_private_data(private, show_records=False)
    refuse_private_data(private, show_records=True)
    refuse_private_data(compose_for((), ("privacy=none",)), show_records=False)


def test_colour_images_are_drawn(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 3, 8, 8))
    plot_reconstruction([("a", "b", images), ("c", "d", images)], "title", tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()
