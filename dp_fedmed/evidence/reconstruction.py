"""What a curious server would see of one site's images, by privacy style.

Every row of the picture is one real round (`observe`) of the same site with the same model; only
the privacy differs. The attacker is favoured: the site trains one step on few records, the whole
ε is spent in one round (so the noise is the least that this ε allows), and of two attempts the one
that comes closer to the originals counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.assemble import make_work
from dp_fedmed.config import Config, OptimizerName, TaskKind, compose
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.curious_server import observe
from dp_fedmed.evidence.gradient_inversion import (
    Images,
    inferred_labels,
    invert_update,
    paired,
    psnr,
    ssim,
)
from dp_fedmed.learning.networks.learner import NetworkWork
from dp_fedmed.reporting.drawing import BRIGHTNESS, GRID, MUTED, new_figure, save_png

SMOOTHINGS = (0.0, 0.1)
STEPS = 600
SITE_RECORDS, MOST_RECORDS = 8, 16
#: Data that anybody may look at: embedded in scikit-learn, or generated.
PUBLIC_DATA = ("digits", "textures")

#: The styles that are compared, in the order of the rows.
STYLES: dict[str, tuple[str, ...]] = {
    "none": ("privacy=none",),
    "user, ε = 8": ("privacy=user", "privacy.user.target_epsilon=8"),
    "sample, ε = 8": ("privacy=sample", "privacy.sample.target_epsilon=8"),
    "sample, ε = 3": ("privacy=sample", "privacy.sample.target_epsilon=3"),
    "sample, ε = 1": ("privacy=sample", "privacy.sample.target_epsilon=1"),
    "hybrid, ε = 3": ("privacy=hybrid", "privacy.sample.target_epsilon=3"),
}

_ONE_ROUND = (
    "recipe=none",
    "data.client_val_fraction=0",
    "engine=local",
    "engine.workers=1",
    "federation.num_rounds=1",
    "federation.evaluate_every=0",
    "federation.client_evaluate_every=0",
)
_ONE_STEP = (
    "model._target_=dp_fedmed.models.MLP",
    "model.args.hidden=[256]",
    "training.optimizer=sgd",
    "training.lr=0.1",
    "training.momentum=0",
    "training.batch_size=100000",
    "training.local_steps=1",
)

DECIDED = (
    *("privacy", "privacy.style", "run_dir", "resume", "recipe", "engine"),
    *("privacy.sample.target_epsilon", "privacy.user.target_epsilon"),
    *("privacy.sample.noise_multiplier", "privacy.user.noise_multiplier"),
)

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Row:
    """What the server makes of one style."""

    name: str
    images: Images
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Figures only."""
        return {
            "style": self.name,
            "psnr": float(np.mean(self.psnr)),
            "ssim": float(np.mean(self.ssim)),
            "psnr_by_record": list(self.psnr),
            "ssim_by_record": list(self.ssim),
        }


def compose_for(overrides: Sequence[str], style: Sequence[str]) -> Config:
    """The configuration of one row: the user's words over the demo's, the style over both.

    Raises:
        ConfigError: for words that the demo decides itself, or a task without images.
    """
    for word in overrides:
        if word.split("=")[0] in DECIDED:
            raise ConfigError(
                f"{word} is not for dp-fedmed reconstruct, which runs its own rounds and compares "
                "the privacy styles by itself: leave it out"
            )
    task = [] if any(word.startswith("task=") for word in overrides) else ["task=digits"]
    base = compose([*task, "privacy=none", *_ONE_ROUND, *overrides], given=())
    own = () if base.task.kind is TaskKind.anomaly else _ONE_STEP
    config = compose([*task, *_ONE_ROUND, *own, *style, *overrides], given=())
    labels = {TaskKind.segmentation: "masks", TaskKind.regression: "numbers"}.get(config.task.kind)
    if labels is not None:
        raise ConfigError(
            f"task={config.task.name} has {labels} instead of classes: dp-fedmed reconstruct needs "
            "images with one class each (task=digits) or an anomaly task (task=textures)"
        )
    return config


def refuse_private_data(config: Config, *, show_records: bool) -> None:
    """Refuses pictures of training records that are not public, unless the user insists."""
    if config.data.name not in PUBLIC_DATA and not show_records:
        raise ConfigError(
            f"data.name={config.data.name}: the picture shows training records of a site as they "
            "are; say --show-records if they may be seen, or use task=digits"
        )


def sized_for_attack(config: Config, overrides: Sequence[str]) -> Config:
    """As many sites as leave the first one few records, unless the user gives the number."""
    if any(word.startswith("federation.num_clients=") for word in overrides):
        return config
    records = len(load_data(config.data, seed=config.seed).train)
    count = max(2, records // SITE_RECORDS)
    return config.replace(federation=replace(config.federation, num_clients=count))


def check_invertible(config: Config) -> None:
    """Refuses what is no gradient or no image."""
    shape = load_data(config.data, seed=config.seed).input_shape
    if len(shape) != 3:
        raise ConfigError(
            f"data.name={config.data.name} has no images: use task=digits or task=textures"
        )
    if config.training.optimizer is not OptimizerName.sgd:
        raise ConfigError(
            f"training.optimizer={config.training.optimizer}: only an update of SGD is read as a "
            "gradient here; use training.optimizer=sgd"
        )


def rebuild(config: Config, name: str, advance: Advance) -> tuple[Row, Images]:
    """One row, from a real round and the images that its update gives away, and the originals."""
    seen = observe(config)
    data = load_data(config.data, seed=config.seed)
    count = len(seen.records)
    if not 0 < count <= MOST_RECORDS:
        raise ConfigError(
            f"federation.num_clients={config.federation.num_clients} leaves the first site {count} "
            f"records: the attack is for 1 to {MOST_RECORDS}; use federation.num_clients="
            f"{max(2, len(data.train) // SITE_RECORDS)}"
        )
    work = make_work(config)
    if not isinstance(work, NetworkWork):
        raise TypeError(f"{type(work).__name__} trains no network")
    work.build(data.input_shape, data.num_classes)
    work.state.load(seen.sent)
    labels = inferred_labels(
        work.model,
        seen.answers[0],
        records=count,
        num_classes=data.num_classes,
        input_shape=data.input_shape,
        lr=config.training.lr,
    )
    if labels is None:  # nothing to read them from: the attacker is given them
        labels = np.asarray(seen.records.y, dtype=np.int64)
    originals = as_images(seen.records.x)
    attempts = [
        invert_update(
            work.model,
            work.task,
            seen.answers[0],
            shape=originals.shape,
            labels=labels,
            smoothing=smoothing,
            seed=config.seed,
            steps=STEPS,
            advance=advance,
        )
        for smoothing in SMOOTHINGS
    ]
    rows = [judged(name, paired(found, originals), originals) for found in attempts]
    return max(rows, key=lambda row: float(np.mean(row.psnr))), originals


def judged(name: str, found: Images, originals: Images) -> Row:
    """Images beside the originals."""
    quality = [(psnr(a, b), ssim(a, b)) for a, b in zip(found, originals, strict=True)]
    return Row(name, found, *zip(*quality, strict=True))


def without_update(config: Config, originals: Images) -> Row:
    """What anybody could guess: the average of held-out images, for every record."""
    average = as_images(load_data(config.data, seed=config.seed).val.x).mean(axis=0)
    return judged("no update at all", np.repeat(average[None], len(originals), 0), originals)


def as_images(x: NDArray[Any]) -> Images:
    """Records as images in [0, 1]."""
    scaled = x / 255.0 if x.dtype == np.uint8 else (np.clip(x, -1.0, 1.0) + 1.0) / 2.0
    return np.asarray(scaled, dtype=np.float64)


def plot_reconstruction(
    rows: Sequence[tuple[str, str, NDArray[Any]]], title: str, path: Path
) -> None:
    """Draw rows of images with a name and a figure beside each, the originals first."""
    count = len(rows[0][2])
    width, left = 0.78, 2.3
    figure = new_figure(left + width * count, width * len(rows) + 0.5, layout=None)
    whole_width, whole_height = figure.get_size_inches()
    margins = {"left": left / whole_width, "right": 0.99, "bottom": 0.02, "wspace": 0.08}
    margins |= {"top": 1.0 - 0.42 / whole_height, "hspace": 0.12}
    panels = figure.subplots(len(rows), count, squeeze=False, gridspec_kw=margins)
    for (name, figure_of_row, images), row in zip(rows, panels, strict=True):
        for image, panel in zip(images, row, strict=True):
            _draw(panel, image)
        beside = {"transform": row[0].transAxes, "ha": "right", "va": "center"}
        row[0].text(-0.15, 0.62, name, fontsize=9, **beside)
        row[0].text(-0.15, 0.3, figure_of_row, fontsize=7, color=MUTED, **beside)
    figure.suptitle(title, fontsize=10, y=1.0 - 0.12 / whole_height, va="top")
    save_png(figure, path, dpi=110)


def _draw(panel: Any, image: NDArray[Any]) -> None:
    panel.set(xticks=[], yticks=[])
    for spine in panel.spines.values():
        spine.set(color=GRID, linewidth=0.5)
    if len(image) == 3:
        panel.imshow(np.clip(image.transpose(1, 2, 0), 0.0, 1.0))
    else:
        panel.imshow(image[0], cmap=BRIGHTNESS, vmin=0.0, vmax=1.0)
