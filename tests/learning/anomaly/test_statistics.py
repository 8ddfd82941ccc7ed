"""Noise-off properties: one image moves the sum by at most the bound, whatever the image is."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian, repaired_inverse
from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from dp_fedmed.learning.anomaly.noisy_rows import NoisyRows, RowsModel
from dp_fedmed.learning.anomaly.public_map import fit_public_map, random_map
from dp_fedmed.learning.anomaly.statistics import packed, step_of, unpacked
from dp_fedmed.privacy import NoiseStream

CHANNELS, DIMENSION = 12, 6
BOUND = 1.0  # what the accountant holds one image's part of a sum for


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def images(n=30, seed=0, patches=16):
    shared = np.linspace(0.5, 2.0, CHANNELS)
    return (shared + 0.4 * rng(seed).standard_normal((n, patches, CHANNELS))).astype(np.float32)


def hostile():
    """Images that try to be more than one image."""
    ordinary = images(1, seed=9)[0]
    single = np.zeros_like(ordinary)
    single[:, 0] = 1e30
    alternating = np.where(np.arange(16)[:, None] % 2 == 0, 1.0, -1.0) * np.ones(CHANNELS)
    broken = ordinary.copy()
    broken[3, 3] = np.nan
    return [
        ordinary,
        1e6 * ordinary,
        -1e6 * ordinary,
        1e-30 * ordinary,
        single,
        alternating.astype(np.float32),
        broken,
        np.full_like(ordinary, np.inf),
        np.zeros_like(ordinary),
    ]


def public_map():
    return random_map(CHANNELS, DIMENSION)


def anchors(count=5):
    return public_map()(images(1, seed=3, patches=count))[0]


STATISTICS = {
    "gaussian, 1 step": lambda: DPGaussian(public_map(), num_steps=1),
    "gaussian, 2 steps": lambda: DPGaussian(public_map(), num_steps=2),
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


def fitted(statistic, data, noise=0.0, seed=0):
    state = statistic.initial_state()
    for _ in range(statistic.num_steps):
        total, count = statistic.total([data], state)
        total = total + noise * rng(seed).standard_normal(len(total))
        state = statistic.update(state, total / count, noise_std=noise / count)
    return state


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


@pytest.mark.parametrize("name", ["gaussian, 1 step", "gaussian, 2 steps", "prototypes"])
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


def test_the_gaussian_is_that_of_the_data():
    statistic = DPGaussian(public_map(), radius=10.0)
    data = images(300)
    state = fitted(statistic, data)
    rows = public_map()(data).reshape(-1, DIMENSION).astype(np.float64)
    assert np.allclose(state["mean"], rows.mean(axis=0), atol=1e-6)
    own = rows.reshape(300, 16, DIMENSION).mean(axis=1)
    within = np.cov((rows.reshape(300, 16, DIMENSION) - own[:, None]).reshape(-1, 6).T, bias=True)
    assert np.allclose(state["patch_precision"], np.linalg.inv(within), rtol=1e-3, atol=1e-2)
    between = np.linalg.inv(np.cov(own.T, bias=True))
    assert np.allclose(state["image_precision"], between, rtol=1e-3, atol=1e-1)
    single = fitted(DPGaussian(public_map(), num_steps=1), data)
    inverse = np.linalg.inv(np.cov(rows.T, bias=True))
    assert np.allclose(single["mean"], rows.mean(axis=0), atol=1e-6)
    assert np.allclose(single["patch_precision"], inverse, rtol=1e-3, atol=1e-2)


def test_prototypes_move_to_where_patches_are():
    data = images(300)
    statistic = DPPrototypes(public_map(), anchors(), num_steps=4, radius=2.0)
    patches = public_map()(data).reshape(-1, DIMENSION)

    def spread(prototypes):
        return np.linalg.norm(patches[:, None] - prototypes[None], axis=2).min(axis=1).mean()

    state = fitted(statistic, data)
    assert spread(state["prototypes"]) < 0.9 * spread(statistic.anchors)
    assert state["shares"].sum() == pytest.approx(1.0)


def test_a_prototype_that_is_all_noise_stays_and_does_not_count():
    statistic = DPPrototypes(public_map(), anchors(), num_steps=1)
    state = statistic.initial_state()
    mean = np.zeros(statistic.vector_size(0))
    mean[0] = 0.7
    after = statistic.update(state, mean, noise_std=1e-3)
    assert after["shares"].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert np.array_equal(after["prototypes"], statistic.anchors)


def test_repair_makes_every_matrix_positive_definite():
    for seed in range(5):
        noise = rng(seed).standard_normal((8, 8))
        inverse = repaired_inverse(noise + noise.T, noise_std=0.5, floor=0.5)
        assert np.linalg.eigvalsh(inverse).min() > 0


def test_the_floor_is_the_largest_eigenvalue_of_the_noise():
    """The formula τ√(2d) is that of packed noise."""
    d = 60
    noise = unpacked(rng().standard_normal(d * (d + 1) // 2), d)
    assert np.linalg.eigvalsh(noise).max() == pytest.approx(np.sqrt(2 * d), rel=0.15)


def test_packing_keeps_the_norm_and_comes_back():
    matrices = rng().standard_normal((3, 5, 5))
    matrices = matrices + matrices.transpose(0, 2, 1)
    vectors = packed(matrices)
    assert np.allclose(np.linalg.norm(vectors, axis=1), np.linalg.norm(matrices, axis=(1, 2)))
    assert np.allclose(unpacked(vectors[1], 5), matrices[1])


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: DPGaussian(public_map(), num_steps=3),
        lambda: DPGaussian(public_map(), radius=0.0),
        lambda: DPPrototypes(public_map(), np.zeros((3, 2))),
        lambda: DPPrototypes(public_map(), anchors(), count_share=1.0),
    ],
)
def test_settings_without_sense_are_refused(make):
    with pytest.raises(ValueError, match=r"try|must be|give"):
        make()


@pytest.mark.parametrize("m", [1, 4])
def test_replacing_an_image_moves_the_rows_by_at_most_the_sensitivity(m):
    rows = NoisyRows(public_map(), rows_per_image=m)
    data = images()

    def chosen(values):
        batches = [values[:5], values[5:]]
        selected = rows.select(batches, selection=NoiseStream.from_public_seed(4))
        assert len(selected) == m * len(data)
        return selected.astype(np.float64)

    before = chosen(data)
    for other in hostile():
        changed = data.copy()
        changed[3] = other
        after = chosen(changed)
        assert np.linalg.norm(after - before) <= rows.sanitizer.sensitivity == 2.0 * np.sqrt(m)
        assert (after != before).any(axis=1).sum() <= m, "the choice of rows looked at an image"


def test_noisy_rows_carry_the_noise_they_promise():
    rows = NoisyRows(public_map(), rows_per_image=4)
    data = images(400)
    clean = rows.select([data], selection=NoiseStream.from_public_seed(4), most=1000)
    assert len(clean) == 1000
    noisy = rows.noised(clean, noise_multiplier=3.0, noise=NoiseStream.from_public_seed(5))
    assert (noisy - clean).std() == pytest.approx(3.0 * np.sqrt(4), rel=0.05), "σ·C√m"
    assert RowsModel(rows.public_map, noisy).patch_scores(data[:2]).shape == (2, 16)


@pytest.mark.parametrize("name", ["gaussian, 1 step", "prototypes", "prototypes, small radius"])
def test_the_proof_holds_before_clipping(name):
    """Clipping then changes nothing, and biases nothing."""
    statistic = STATISTICS[name]()
    patches = public_map()(np.concatenate([images(), np.stack(hostile())]))
    for state in states(statistic, images()):
        vectors = statistic._vectors(patches, state)
        assert np.linalg.norm(vectors, axis=1).max() <= 1.0 + 1e-12
