"""How evenly whole anomaly runs serve clients, and what they may keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dp_fedmed.config import Config
from dp_fedmed.data import Records, in_proportion
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.anomaly.features import FeatureCache, PatchFeatures
from dp_fedmed.learning.fairness import fairness


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_clients_with_one_category_each_have_that_categorys_figure(
    tiny: Callable[..., Config],
) -> None:
    words = ("data.partition.name=natural", "federation.num_clients=3", "data.num_records=90")
    folder = run_federation(tiny(*words)).run_dir
    metrics = rows(folder / "metrics.jsonl")
    clients = metrics[-2]["clients"]
    by_client = sorted(own["image_auroc"] for own in clients.values())
    test = metrics[-1]["test"]
    by_category = sorted(test[f"image_auroc/{name}"] for name in ("woven", "metal", "tissue"))
    assert by_client == pytest.approx(by_category)
    assert metrics[-2]["fairness"] == fairness(by_client)
    assert metrics[-2]["fairness"]["worst"] == test["image_auroc/worst"]


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_figures_by_client_stay_private_where_clients_do(
    style: str, tiny: Callable[..., Config]
) -> None:
    words = (f"privacy={style}", "federation.client_evaluate_every=1")
    folder = run_federation(tiny(*words)).run_dir
    public = rows(folder / "metrics.jsonl")
    assert not [row for row in public if "clients" in row or "fairness" in row]
    last = rows(folder / "private" / "rounds.jsonl")[-1]
    assert len(last["clients"]) == 4
    assert {"worst", "gap", "jain"} == last["fairness"].keys()


def test_evaluation_images_come_in_a_clients_proportions() -> None:
    sites, labels = np.repeat([0, 1, 2], 20), np.tile([0, 1], 30)
    there = Records(np.zeros((60, 1), np.float32), labels, sites)
    own = Records(np.zeros((15, 1), np.float32), np.zeros(15, int), np.repeat([0, 2], [10, 5]))
    kept = in_proportion(there, own, seed=0, client="a")
    assert np.bincount(kept.site).tolist() == [20, 0, 10]
    assert np.bincount(kept.y[kept.site == 2]).tolist() == [5, 5]
    nobody = Records(np.zeros((2, 1), np.float32), np.zeros(2, int), np.array([7, 7]))
    assert len(in_proportion(there, nobody, seed=0, client="a")) == 0
    assert len(in_proportion(there, own.subset(np.arange(0)), seed=0, client="a")) == 60


@pytest.mark.parametrize("style", ["sample", "user"])
def test_kept_features_change_no_bit_of_a_run(
    style: str, tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = PatchFeatures.batches

    def counted(self, images):  # type: ignore[no-untyped-def]
        asked.append(len(images))
        return real(self, images)

    words = (f"privacy={style}", "privacy.noise_seed=1", "federation.client_evaluate_every=0")
    everyone = ("federation.sampler=all", "federation.sample_rate=1.0")
    models, computed = [], []
    for most_bytes in (0, 2**30):
        monkeypatch.setattr(PatchFeatures, "batches", counted)
        monkeypatch.setattr(
            "dp_fedmed.learning.anomaly.detector.FeatureCache",
            lambda extract, most=most_bytes: FeatureCache(extract, most_bytes=most),
        )
        asked.clear()
        folder = run_federation(tiny(*words, *everyone)).run_dir
        models.append(load_file(folder / "model.safetensors"))
        computed.append(sum(asked))
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    assert computed[0] - computed[1] == 39, "the second round computes no features"
