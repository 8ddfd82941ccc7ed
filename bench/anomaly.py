"""Anomaly detection: greedy selection against anomalib's update, scoring, and the metrics."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bench.rows import Row, best_of
from dp_fedmed.config import DataConfig
from dp_fedmed.data.textures import load_textures
from dp_fedmed.learning.anomaly import MemoryBank, PatchFeatures, greedy_k_center, pixel_maps
from dp_fedmed.learning.anomaly.metrics import anomaly_metrics
from dp_fedmed.models.backbones import make_backbone
from dp_fedmed.privacy.streams.reproducible import stream

NUM_ROWS, DIMENSION, CHOSEN = 327_680, 128, 60


def anomalib_k_center(rows: NDArray[np.float32], size: int, start: int) -> NDArray[np.int64]:
    """Selection with the update of anomalib 2: the norm of all differences, then a minimum."""
    points = torch.from_numpy(rows)
    nearest = torch.full((len(points),), torch.inf)
    chosen = [start]
    while len(chosen) < size:
        gaps = torch.linalg.norm(points - points[chosen[-1]], dim=1)
        nearest = torch.minimum(nearest, gaps)
        nearest[chosen[-1]] = 0.0
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


def selection_rows() -> list[Row]:
    rows = stream(0, "bench-k-center").standard_normal((NUM_ROWS, DIMENSION), dtype=np.float32)
    theirs = best_of(2, lambda: anomalib_k_center(rows, CHOSEN, 0)) / CHOSEN
    ours = best_of(2, lambda: greedy_k_center(rows, CHOSEN, start=0)) / CHOSEN
    fast = best_of(2, lambda: greedy_k_center(rows, CHOSEN, start=0, projection=32)) / CHOSEN
    size = f"N={NUM_ROWS}, d={DIMENSION}, k={CHOSEN}"
    return [
        Row(f"k-center, anomalib's update, {size}", 1e3 * theirs, unit="ms/row"),
        Row("k-center, ours, exact", 1e3 * ours, unit="ms/row"),
        Row("k-center, ours, projected to 32 dimensions", 1e3 * fast, unit="ms/row"),
        Row("times anomalib's speed, exact", theirs / ours, 2.0, "×", at_least=True),
        Row("times anomalib's speed, projected", theirs / fast, 2.0, "×", at_least=True),
    ]


def accuracy_rows() -> list[Row]:
    """On textures with fixed filters, a bank of 1000 rows, chosen in both ways."""
    data = load_textures(DataConfig(num_records=400, image_size=64), 0)
    extract = PatchFeatures(make_backbone("filters"))
    train, test = extract(data.train.x), extract(data.test.x)
    rows = train.reshape(-1, train.shape[2])

    def figures(chosen: NDArray[np.int64]) -> dict[str, float]:
        bank = MemoryBank(rows[chosen])
        scored = [bank.score(image) for image in test]
        maps = pixel_maps(np.stack([patches for _, patches in scored]), image_size=64)
        scores = np.array([score for score, _ in scored])
        return anomaly_metrics(scores, maps, labels=data.test.image_labels, masks=data.test.y)

    ours = figures(greedy_k_center(rows, 1000, start=0))
    theirs = figures(anomalib_k_center(rows, 1000, 0))
    lost = theirs["image_auroc"] - ours["image_auroc"]
    return [
        Row("textures, image AUROC, ours", ours["image_auroc"], 0.95, at_least=True),
        Row("textures, image AUROC lost to anomalib's selection", lost, 0.01),
        Row("textures, pixel AUROC, ours", ours["pixel_auroc"]),
        Row("textures, AUPRO at 0.3, ours", ours["aupro_0.3"]),
    ]


def scoring_rows() -> list[Row]:
    rng = stream(0, "bench-scoring")
    bank = MemoryBank(rng.standard_normal((2000, DIMENSION), dtype=np.float32), use_faiss=False)
    patches = rng.standard_normal((1024, DIMENSION), dtype=np.float32)
    maps = rng.random((100, 256, 256), dtype=np.float32)
    masks = np.zeros(maps.shape, np.uint8)
    masks[::2, 100:140, 60:90] = 1
    labels = masks.max(axis=(1, 2))
    scores = maps.max(axis=(1, 2))
    metrics = best_of(2, lambda: anomaly_metrics(scores, maps, labels=labels, masks=masks))
    return [
        Row(
            "score one 256-px image (32×32 patches) on 2000 rows",
            1e3 * best_of(5, lambda: bank.score(patches)),
            50.0,
            "ms",
        ),
        Row("AUROC and AUPRO of 100 maps of 256 px", metrics, 10.0, "s"),
    ]


def rows() -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return [*selection_rows(), *accuracy_rows(), *scoring_rows()]
    finally:
        torch.set_num_threads(threads)
