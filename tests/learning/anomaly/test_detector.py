"""A detector's arrays as they travel, and its parts together on generated textures."""

from functools import lru_cache

import numpy as np
import pytest

from dp_fedmed.assemble import detector_settings
from dp_fedmed.config import DataConfig, compose
from dp_fedmed.data.textures import load_textures
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.anomaly import MemoryBank, PatchFeatures, greedy_k_center, pixel_maps
from dp_fedmed.learning.anomaly.detector import (
    BANK,
    Detector,
    make_statistic,
    packed_state,
    public_images,
    unpacked_state,
)
from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian
from dp_fedmed.learning.anomaly.metrics import (
    anomaly_metrics,
    auroc,
    nearest_distance_attack,
    threshold,
)
from dp_fedmed.learning.anomaly.statistics import random_map
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.models.backbones import make_backbone
from dp_fedmed.privacy import NoiseStream, compute_noise_multiplier
from tests.learning.anomaly.patches import release
from tests.runs.anomaly.runs import TINY

MAP = {"map_offset": np.zeros(2), "map_matrix": np.eye(2)}


def test_a_state_travels_without_scalars_and_comes_back():
    inner = {"mean": np.ones(3), "step": np.array(2)}
    sent = {**MAP, **packed_state(inner)}
    assert all(value.ndim > 0 for value in sent.values())
    back = unpacked_state(sent)
    assert back.keys() == inner.keys()
    assert (int(back["step"]), back["step"].shape) == (2, ())


def test_a_bank_has_the_size_that_is_asked_for_or_a_share():
    for words, size in (
        (["anomaly.coreset_size=7"], 7),
        (["anomaly.coreset_size=null", "anomaly.coreset_ratio=0.5"], None),
    ):
        detector = Detector(detector_settings(compose(["privacy=none", *TINY, *words])))
        state = detector.initial((3, 32, 32), num_images=4)
        patches = detector.features(np.zeros((1, 3, 32, 32), np.uint8)).shape[1]
        assert len(state[BANK]) == (size or 2 * patches)
        assert detector.scorer(state) is None, "nothing is learnt yet"


def test_images_that_are_no_squares_are_refused_and_so_are_too_many_dimensions():
    detector = Detector(detector_settings(compose(["privacy=none", *TINY])))
    for shape in ((3, 32, 16), (4,)):
        with pytest.raises(ConfigError, match="needs square images"):
            detector.initial(shape, num_images=4)
    wide = Detector(detector_settings(compose(["privacy=none", *TINY, "anomaly.dimension=4000"])))
    with pytest.raises(ConfigError, match=r"anomaly\.dimension=4000 is more than the"):
        wide.initial((3, 32, 32), num_images=4)


@lru_cache(maxsize=1)
def textures():
    data = load_textures(DataConfig(num_records=400, image_size=64), 0)
    extract = PatchFeatures(make_backbone("filters"))
    public = extract(public_images(30, size=64))
    return data, extract(data.train.x), extract(data.val.x), extract(data.test.x), public


def sigma_for(epsilon, steps):
    return compute_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=1e-5,
        sample_rate=1.0,
        steps_per_round=1,
        num_rounds=steps,
        accountant="exact",
    )


def private_model(name, epsilon, seed=0, **options):
    _, train, _, _, public = textures()
    statistic = make_statistic(name, public, **options)
    sigma = sigma_for(epsilon, statistic.num_steps) if epsilon else 0.0
    streams = [NoiseStream.from_public_seed(10 * seed + i) for i in range(statistic.num_steps)]
    clients = [train[:80], train[80:]]
    return statistic.model(release(statistic, clients, noise_multiplier=sigma, streams=streams))


@lru_cache(maxsize=1)
def bank():
    train = textures()[1]
    rows = train.reshape(-1, train.shape[2])
    return MemoryBank(rows[greedy_k_center(rows, 1000)])


def test_a_memory_bank_finds_the_defects_and_where_they_are():
    data, _, _, test, _ = textures()
    memory = bank()
    scored = [memory.score(image) for image in test]
    maps = pixel_maps(np.stack([patches for _, patches in scored]), image_size=64)
    figures = anomaly_metrics(
        np.array([score for score, _ in scored]),
        maps,
        labels=data.test.image_labels,
        masks=data.test.y,
    )
    assert figures["image_auroc"] > 0.95
    assert figures["pixel_auroc"] > 0.95
    assert figures["aupro_0.3"] > 0.85


@pytest.mark.parametrize(
    ("name", "epsilon", "least"),
    [("dp_gaussian", 8.0, 0.80), ("dp_gaussian", 2.0, 0.75), ("dp_prototypes", 8.0, 0.6)],
)
def test_private_models_find_defects_too(name, epsilon, least):
    data, _, _, test, _ = textures()
    model = private_model(name, epsilon, **({"dimension": 24} if name == "dp_gaussian" else {}))
    scores = model.image_scores(model.patch_scores(test))
    assert auroc(scores, data.test.image_labels > 0) > least


def test_the_attack_succeeds_against_a_bank_and_not_against_a_private_model():
    _, train, val, _, _ = textures()
    assert nearest_distance_attack(bank(), train, val) > 0.8
    model = private_model("dp_gaussian", 2.0, dimension=24)
    assert 0.35 < nearest_distance_attack(model, train, val) < 0.65


def test_one_client_or_many_give_the_same_model():
    _, train, _, _, public = textures()
    statistic = make_statistic("dp_gaussian", public, dimension=16)
    streams = [NoiseStream.from_public_seed(i) for i in range(2)]
    one = release(statistic, [train], noise_multiplier=0.0, streams=streams)
    five = release(statistic, np.array_split(train, 5), noise_multiplier=0.0, streams=streams)
    assert np.allclose(one["mean"], five["mean"])
    for name in ("patch_precision", "image_precision"):
        assert np.allclose(one[name], five[name], rtol=1e-6)


def test_public_images_do_not_depend_on_a_run():
    assert np.array_equal(public_images(3, size=32), public_images(3, size=32))
    train = textures()[0].train.x
    assert not any(
        (image == train).all(axis=(1, 2, 3)).any() for image in public_images(9, size=64)
    )


def test_an_unknown_mechanism():
    with pytest.raises(ValueError, match=r"dp_gaussian or dp_prototypes"):
        make_statistic("noisy", textures()[4])


def test_how_many_units_a_release_needs():
    statistic = DPGaussian(random_map(100, 64))
    assert statistic.units_needed(sigma_for(2.0, 2)) == 361
    assert statistic.units_needed(sigma_for(8.0, 2)) < 120
    assert DPGaussian(random_map(100, 8)).units_needed(2.0) == 32


def test_fairness_and_threshold():
    assert fairness([0.7, 0.7]) == {"worst": 0.7, "gap": 0.0, "jain": pytest.approx(1.0)}
    assert fairness([]) == {}
    normal = np.random.Generator(np.random.Philox(0)).random(1000)
    assert np.mean(normal > threshold(normal, false_positive_rate=0.1)) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="false_positive_rate"):
        threshold(normal, false_positive_rate=0.0)
