"""`python -m bench.anomaly_federation [words]`: whole runs on the magnetic tiles, as Markdown.

DP_FEDMED_DATA and DP_FEDMED_MOBILENET are those of `bench.anomaly_utility`. Every run is what
`dp-fedmed run task=mvtec_folder data.path=…/magnetic_tile` with the words of its row does: clients,
strategy, ledger, noise from a fresh key. The backbone is frozen, so each image's features are
computed once for all runs. Means and standard deviations are over the seeds, which decide the
clients, the validation part (a seventh of the normal tiles) and the banks. With words, only rows
that hold all of them are run.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.anomaly.features import Floats, PatchFeatures

SEEDS = (0, 1, 2)
SHOWN = ("image_auroc", "pixel_auroc", "aupro_0.3")
TRUSTED = "privacy=sample privacy.noise=server"
MANY = "federation.num_clients=200 data.partition.min_records=1"
ROWS: dict[str, tuple[int, ...]] = {
    "privacy=none federation.num_clients=1": SEEDS,
    "privacy=none federation.num_clients=5": SEEDS,
    f"{TRUSTED} privacy.sample.target_epsilon=8": SEEDS,
    f"{TRUSTED} privacy.sample.target_epsilon=2": SEEDS,
    "privacy=sample privacy.sample.target_epsilon=8": SEEDS,
    f"{TRUSTED} privacy.sample.target_epsilon=8 anomaly.mechanism=dp_prototypes": SEEDS,
    "privacy=sample privacy.sample.target_epsilon=8 anomaly.mechanism=noisy_rows": SEEDS,
    f"privacy=user privacy.user.target_epsilon=8 {MANY}": (0,),
    f"privacy=user privacy.user.target_epsilon=8 {MANY} anomaly.dimension=32": (0,),
    f"privacy=user privacy.user.target_epsilon=8 {MANY} anomaly.dimension=64": (0,),
    f"privacy=hybrid privacy.user.target_epsilon=8 privacy.sample.target_epsilon=8 {MANY}": (0,),
}


class Remembered(PatchFeatures):
    """Features of each image, computed once per process."""

    kept: ClassVar[dict[bytes, Floats]] = {}

    def batches(self, images: NDArray[np.uint8]) -> Iterator[Floats]:
        """From memory, where they are."""
        for start in range(0, len(images), self.batch_size):
            part = images[start : start + self.batch_size]
            keys = [hashlib.blake2b(np.ascontiguousarray(image).data).digest() for image in part]
            if any(key not in self.kept for key in keys):
                self.kept.update(zip(keys, next(super().batches(part)), strict=True))
            yield np.stack([self.kept[key] for key in keys])


def figures(words: str, seed: int, base: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = f"run_dir={folder}/run"
        result = run_federation(compose([*base, *words.split(), f"seed={seed}", run_dir]))
    return result.test


def main() -> int:
    from dp_fedmed.learning.anomaly import detector

    folder = Path(os.environ.get("DP_FEDMED_DATA", ".")).resolve() / "magnetic_tile"
    if not folder.is_dir():
        print("skipped: no magnetic_tile in DP_FEDMED_DATA")
        return 0
    torch.set_num_threads(1)
    patched: Any = detector
    patched.PatchFeatures = Remembered
    base = ["task=mvtec_folder", f"data.path={folder}", "engine.workers=1"]
    if "DP_FEDMED_MOBILENET" in os.environ:
        base.append(f"anomaly.weights={os.environ['DP_FEDMED_MOBILENET']}")
    print(f"| `dp-fedmed run task=mvtec_folder …` | seeds | {' | '.join(SHOWN)} |")
    print("|---|---|" + "---|" * len(SHOWN))
    for words, seeds in ROWS.items():
        if not all(asked in words for asked in sys.argv[1:]):
            continue
        found = [figures(words, seed, base) for seed in seeds]
        shown = []
        for name in SHOWN:
            values = [each[name] for each in found]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            shown.append(f"{statistics.mean(values):.3f}{spread}")
        print(f"| `{words}` | {len(seeds)} | {' | '.join(shown)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
