"""Noise-off properties: one image moves the sum by at most the bound, whatever the image is."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian
from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from dp_fedmed.learning.anomaly.statistics import fit_public_map, packed, step_of, unpacked
from tests.learning.anomaly.patches import (
    anchors,
    fitted,
    hostile,
    images,
    public_map,
    rng,
)

BOUND = 1.0  # what the accountant holds one image's part of a sum for


STATISTICS = {
    "gaussian": lambda: DPGaussian(public_map()),
    "gaussian, small radius": lambda: DPGaussian(public_map(), radius=1e-3),
    "prototypes": lambda: DPPrototypes(public_map(), anchors(), num_steps=3),
    "prototypes, small radius": lambda: DPPrototypes(public_map(), anchors(), radius=1e-3),
}


def states(statistic, data):
    """The state before each step, when nothing is noised."""
    state = statistic.initial_state()
    for _ in range(statistic.num_steps):
        yield state
        total, count = statistic.total([data], state)
        state = statistic.update(state, total / count, noise_std=0.0)


@pytest.fixture(params=STATISTICS)
def statistic(request):
    return STATISTICS[request.param]()


def test_one_image_moves_the_sum_by_at_most_the_bound(statistic):
    data = images()
    for state in states(statistic, data):
        before = statistic.total([data], state)[0]
        for extra in hostile():
            after = statistic.total([data, extra[None]], state)[0]
            assert np.isfinite(after).all()
            assert np.linalg.norm(after - before) <= BOUND * (1 + 1e-9)
        for i in range(len(data)):
            without = statistic.total([np.delete(data, i, axis=0)], state)[0]
            assert np.linalg.norm(before - without) <= BOUND * (1 + 1e-9)


def test_the_bound_does_not_rest_on_a_mechanisms_own_arithmetic(statistic, monkeypatch):
    """Each keeps its vectors within it already; one that were wrong is clipped all the same."""
    vectors = statistic._vectors
    monkeypatch.setattr(statistic, "_vectors", lambda p, state: 1e4 * vectors(p, state))
    norms = np.linalg.norm(statistic.contributions(images(), statistic.initial_state()), axis=1)
    assert norms == pytest.approx(BOUND)
    assert norms.max() <= BOUND


def test_an_images_vector_depends_on_no_other_image(statistic):
    data = images()
    for state in states(statistic, data):
        together = statistic.contributions(data, state)
        for i in (0, 7):
            alone = statistic.contributions(data[i : i + 1], state)[0]
            assert np.allclose(together[i], alone, atol=1e-12)
        assert together.shape[1] == statistic.vector_size(step_of(state))
        assert np.linalg.norm(together, axis=1).max() <= BOUND


def test_the_mean_of_a_clients_vectors_is_bounded_too(statistic):
    data = np.concatenate([images(), np.stack(hostile())])
    for state in states(statistic, images()):
        total, count = statistic.total([data], state)
        assert np.linalg.norm(total / count) <= BOUND


def test_batches_and_clients_add_up(statistic):
    data = images()
    for state in states(statistic, data):
        whole, count = statistic.total([data], state)
        first, second = (statistic.total([part], state) for part in (data[:11], data[11:]))
        assert np.allclose(whole, first[0] + second[0], atol=1e-9)
        assert count == first[1] + second[1]


def test_the_vectors_use_the_bound(statistic):
    """A bound that nothing comes near would waste the budget."""
    state = list(states(statistic, images()))[-1]
    assert max(np.linalg.norm(statistic.contributions(images(), state), axis=1)) > 0.1


@pytest.mark.parametrize("noise", [0.0, 0.6, 50.0])
def test_models_score_whatever_the_noise_was(statistic, noise):
    model = statistic.model(fitted(statistic, images(), noise))
    scores = model.patch_scores(np.concatenate([images(4, seed=5), np.stack(hostile())]))
    assert scores.shape == (13, 16)
    assert np.isfinite(scores).all()
    assert np.isfinite(model.image_scores(scores)).all()


@pytest.mark.parametrize("name", ["gaussian", "prototypes"])
def test_strange_patches_score_higher(name):
    statistic = STATISTICS[name]()
    model = statistic.model(fitted(statistic, images(200), noise=0.6))
    normal = images(20, seed=5)
    strange = normal.copy()
    strange[:, :4] *= -1
    scores = [model.image_scores(model.patch_scores(x)) for x in (normal, strange)]
    assert scores[1].min() > scores[0].max()
    patches = model.patch_scores(strange)
    assert patches[:, :4].mean() > patches[:, 4:].mean()


def test_packing_keeps_the_norm_and_comes_back():
    matrices = rng().standard_normal((3, 5, 5))
    matrices = matrices + matrices.transpose(0, 2, 1)
    vectors = packed(matrices)
    assert np.allclose(np.linalg.norm(vectors, axis=1), np.linalg.norm(matrices, axis=(1, 2)))
    assert np.allclose(unpacked(vectors[1], 5), matrices[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: DPGaussian(public_map(), radius=0.0),
        lambda: DPPrototypes(public_map(), np.zeros((3, 2))),
        lambda: DPPrototypes(public_map(), anchors(), count_share=1.0),
    ],
)
def test_settings_without_sense_are_refused(make):
    with pytest.raises(ValueError, match=r"try|must be|give"):
        make()


@pytest.mark.parametrize("name", ["gaussian", "prototypes", "prototypes, small radius"])
def test_the_proof_holds_before_clipping(name):
    """Clipping then changes nothing, and biases nothing."""
    statistic = STATISTICS[name]()
    patches = public_map()(np.concatenate([images(), np.stack(hostile())]))
    for state in states(statistic, images()):
        vectors = statistic._vectors(patches, state)
        assert np.linalg.norm(vectors, axis=1).max() <= 1.0 + 1e-12


def test_public_maps_give_the_unit_ball():
    fitted_map = fit_public_map(images(20, seed=8), 4)
    for made in (public_map(), fitted_map):
        mapped = made(np.stack(hostile())).astype(np.float64)
        assert np.isfinite(mapped).all()
        assert np.linalg.norm(mapped, axis=2).max() <= 1.0


def test_a_public_map_looks_at_public_images_only():
    one, two = (fit_public_map(images(20, seed=8), 4) for _ in range(2))
    assert np.array_equal(one.matrix, two.matrix)
    with pytest.raises(ValueError, match="dimension=13"):
        fit_public_map(images(20), 13)
