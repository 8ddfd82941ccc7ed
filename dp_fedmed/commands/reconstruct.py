"""`dp-fedmed reconstruct`: what a curious server would see of a site's images, as pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.commands.arguments import Arguments, output_directory

if TYPE_CHECKING:
    from rich.console import Console

    from dp_fedmed.config import Config

HELP = """\
dp-fedmed reconstruct [--show-records] [overrides]: what a curious server would see.

  dp-fedmed reconstruct                         digits, rebuilt from one site's first update
  dp-fedmed reconstruct task=textures           patches of training images in a memory bank
  dp-fedmed reconstruct --show-records task=fashion_mnist data.path=/data/fashion-mnist

Real rounds for each privacy style: the server sends its model, one site with few records answers,
and the attack works on the answer alone. For images with a class it inverts the gradient (Geiping
et al. 2020), of one full step of an MLP with 256 hidden units unless you name another network; for
anomaly detectors it looks for the site's own patches in what was sent. It writes reconstruction.png
and reconstruction.json into the folder where it is called.

The picture shows training records as they are. For data other than the embedded and generated ones
you must say that they may be seen: --show-records. Takes the overrides of dp-fedmed run, but for
those of the privacy styles, which it compares by itself.
"""

PICTURE, FIGURES = "reconstruction.png", "reconstruction.json"
SCHEMA = 1
MOST_SHOWN = 8


def main(arguments: list[str]) -> int:
    """Draw what the overrides describe."""
    given = Arguments(HELP).flag("--show-records").read(arguments)
    overrides = given.overrides
    from rich.console import Console

    console = Console()
    with console.status("loading PyTorch, Flower and the data"):
        from dp_fedmed.config import TaskKind
        from dp_fedmed.evidence.reconstruction import compose_for, refuse_private_data
        from dp_fedmed.reporting.run_log import quiet_console

        config = compose_for(overrides, ("privacy=none",))
        refuse_private_data(config, show_records=given.show_records)
        quiet_console()
    is_anomaly = config.task.kind is TaskKind.anomaly
    _refuse_without_effect(overrides, is_anomaly=is_anomaly)
    draw = _from_answers if is_anomaly else _from_gradients
    rows, report = draw(overrides, config, console)
    report = {"schema": SCHEMA, "task": config.task.name, **report}
    from dp_fedmed.evidence.reconstruction import plot_reconstruction

    folder = output_directory(Path.cwd())
    plot_reconstruction(rows, report["title"], folder / PICTURE)
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / FIGURES).write_text(text, encoding="utf-8")
    for name, figure, _ in rows[1:]:
        console.print(f"{name:>18}: {figure}", highlight=False)
    console.print(report["statement"], highlight=False, markup=False)
    console.print(f"Picture: {folder / PICTURE}", soft_wrap=True, highlight=False)
    return 0


def _refuse_without_effect(overrides: Sequence[str], *, is_anomaly: bool) -> None:
    """Refuses settings that have an effect in none of the styles that are compared."""
    from dp_fedmed.config import given_keys, refuse_without_effect
    from dp_fedmed.evidence import bank_reconstruction, reconstruction

    styles = bank_reconstruction.STYLES if is_anomaly else reconstruction.STYLES
    rows = (reconstruction.compose_for(overrides, words) for words in styles.values())
    refuse_without_effect(rows, given_keys(overrides))


def _progress(console: Console) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


Sheet = tuple[list[tuple[str, str, Any]], dict[str, Any]]


def _from_gradients(overrides: Sequence[str], config: Config, console: Console) -> Sheet:
    import torch

    from dp_fedmed.evidence import reconstruction as demo

    torch.set_num_threads(1)  # the images are small: threads would only wait for each other
    demo.check_invertible(config)
    found = []
    with _progress(console) as bar:
        task = bar.add_task("", total=len(demo.STYLES) * demo.STEPS * len(demo.SMOOTHINGS))
        for name, words in demo.STYLES.items():
            bar.update(task, description=f"{name:>14}")
            styled = demo.sized_for_attack(demo.compose_for(overrides, words), overrides)
            row, originals = demo.rebuild(styled, name, lambda n: bar.advance(task, n))
            found.append(row)
    found.append(demo.without_update(config, originals))
    shown = slice(0, MOST_SHOWN)
    rows = [("training images", "of one site", originals[shown])]
    for row in found:
        figures = row.to_json()
        label = f"PSNR {figures['psnr']:.1f} dB, SSIM {figures['ssim']:.2f}"
        rows.append((row.name, label, row.images[shown]))
    best, guess = found[0].to_json(), found[-1].to_json()
    private = max(r.to_json()["psnr"] for r in found if r.name.startswith(("sample", "hybrid")))
    return rows, {
        "attack": "gradient inversion: cosine similarity and total variation",
        "title": f"{config.task.name}: rebuilt by the server from the first update of one site",
        "records": len(originals),
        "rows": [row.to_json() for row in found],
        "statement": (
            f"Without privacy the server rebuilds the images (PSNR {best['psnr']:.1f} dB); style "
            "user does not change that, since its noise comes after the server. With noise added "
            f"at the site it gets {private:.1f} dB at best, and an average image, for which no "
            f"update is needed, has {guess['psnr']:.1f} dB. Other attacks may do better; only the "
            "guarantee speaks of all of them."
        ),
    }


def _from_answers(overrides: Sequence[str], config: Config, console: Console) -> Sheet:
    from dp_fedmed.evidence import bank_reconstruction as demo
    from dp_fedmed.evidence.reconstruction import as_images, compose_for

    found = []
    with _progress(console) as bar:
        task = bar.add_task("", total=len(demo.STYLES))
        for name, words in demo.STYLES.items():
            bar.update(task, description=f"{name:>14}")
            styled = compose_for(overrides, words)
            row, seen = demo.look_into_answer(styled, name)
            found.append((row, seen))
            bar.advance(task)
    seen = found[0][1]
    first = demo.chosen_images(seen.records, found[0][0].given_away, MOST_SHOWN)
    images = as_images(seen.records.x[first])
    rows = [("training images", "of one site", images)]
    for row, _ in found:
        share = f"{int(row.given_away.sum())} of {row.given_away.size} patches sent"
        rows.append((row.name, share, demo.mosaics(images, row.given_away[first])))
    bank, noised = found[0][0], found[1][0]
    return rows, {
        "attack": "which patches of its training images a site has sent as they are",
        "title": f"{config.task.name}: patches of training images in what one site sends",
        "records": len(seen.records),
        "rows": [row.to_json() for row, _ in found],
        "statement": (
            f"Without privacy {int(bank.given_away.sum())} of {bank.given_away.size} patches of "
            f"this site's images are in its answer as they are. With noise added at the site the "
            f"answer is {noised.numbers} noised numbers for all images together, and none of them "
            "is a patch. A server that is trusted (privacy.noise=server) is sent those "
            "numbers without noise."
        ),
    }
