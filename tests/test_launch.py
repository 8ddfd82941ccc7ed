"""A federation from Python: on the engine that was asked for, with somebody who watches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed import launch
from dp_fedmed.config import Config
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import ConfigError
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.observer import Observer

TINY = ("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "federation.num_rounds=1")


@pytest.mark.parametrize(("name", "chosen"), [("local", "run_locally"), ("ray", "run_on_ray")])
def test_the_engine_is_the_configured_one(
    name: str, chosen: str, small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Config, Any]] = []
    for each in ("run_locally", "run_on_ray"):
        monkeypatch.setattr(
            launch, each, lambda config, shown, each=each: asked.append((each, config, shown))
        )
    config, watches = small(f"engine.name={name}"), Observer()
    launch.run_federation(config, watches)
    launch.run_federation(config)
    assert asked[0] == (chosen, config, watches)
    assert asked[1][0] == chosen
    assert isinstance(asked[1][2], LogDisplay), "unless somebody watches, the log does"


def test_a_whole_run_ends_with_its_result_on_a_grid_that_may_be_watched(
    small: Callable[..., Config],
) -> None:
    grids: list[LocalGrid] = []

    def watched(*args: Any, **settings: Any) -> LocalGrid:
        grids.append(LocalGrid(*args, **settings))
        return grids[0]

    config = small(*TINY)
    result = launch.run_locally(config, Observer(), watched)
    assert (result.stopped, result.rounds) == ("completed", 1)
    assert str(result.run_dir) == config.run_dir
    assert (result.run_dir / "model.safetensors").is_file()
    assert len(list(grids[0].get_node_ids())) == config.num_sites


def test_what_cannot_be_is_refused_before_anything_is_written(
    small: Callable[..., Config],
) -> None:
    config = small("federation.num_clients=4000", *TINY)
    with pytest.raises(ConfigError):
        launch.run_federation(config, Observer())
    assert not Path(config.run_dir).exists()
