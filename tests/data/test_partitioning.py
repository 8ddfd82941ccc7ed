import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_fedmed.config import DataConfig, PartitionConfig, PartitionName
from dp_fedmed.data import load_data, partition
from dp_fedmed.data.partitioning import _dirichlet_draw, _size_skewed, partition_labels
from dp_fedmed.errors import ConfigError
from tests.studies import study, whole

ROOT = Path(__file__).resolve().parents[2]
KINDS = tuple(PartitionName)


def config(name, **options):
    return PartitionConfig(name=PartitionName(name), **options)


def check(dataset, parts, *, num_clients, min_records):
    assert len(parts) == num_clients
    assert all(np.all(np.diff(part) > 0) for part in parts), "sorted, no record twice"
    together = np.concatenate(parts)
    assert sorted(together.tolist()) == list(range(len(dataset.train))), "disjoint and complete"
    assert min(len(part) for part in parts) >= min_records


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(48, 200),
    num_clients=st.integers(1, 8),
    min_records=st.integers(1, 6),
    seed=st.integers(0, 4),
)
def test_every_record_has_one_client_and_every_client_enough(
    make_dataset, name, n, num_clients, min_records, seed
):
    dataset = make_dataset(n, ids=10)
    options = config(name, min_records=min_records, alpha=0.3, classes_per_client=2)
    try:
        parts = partition(dataset, options, num_clients=num_clients, seed=seed)
    except ConfigError as error:
        refusal = str(error)
    else:
        check(dataset, parts, num_clients=num_clients, min_records=min_records)
        return
    assert "data.partition." in refusal
    assert name != "iid", "48 records are enough for every iid example"


@pytest.mark.parametrize("name", KINDS)
def test_the_seed_decides_and_nothing_else(make_dataset, name):
    def draw(seed):
        parts = partition(make_dataset(120, ids=12), config(name), num_clients=4, seed=seed)
        return [part.tolist() for part in parts]

    first = draw(1)
    np.random.default_rng(0)
    assert draw(1) == first
    if name != "natural":
        assert draw(2) != first


def test_two_processes_agree():
    code = (
        "import hashlib\n"
        "from dp_fedmed.config import DataConfig, PartitionConfig, PartitionName as N\n"
        "from dp_fedmed.data import load_data, partition\n"
        "digest = hashlib.sha256()\n"
        "for name in ('iid', 'dirichlet', 'pathological'):\n"
        "    data = load_data(DataConfig(), seed=5)\n"
        "    for p in partition(data, PartitionConfig(name=N(name)), num_clients=3, seed=5):\n"
        "        digest.update(p.tobytes())\n"
        "print(digest.hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr == ""


def test_results_are_cached_and_cannot_be_written_to(make_dataset):
    dataset = make_dataset(50)
    parts = partition(dataset, config("iid"), num_clients=5, seed=0)
    assert partition(dataset, config("iid"), num_clients=5, seed=0) is parts
    with pytest.raises(ValueError, match="read-only"):
        parts[0][0] = 1


def test_iid_shuffles_and_shares_evenly(make_dataset):
    parts = partition(make_dataset(103), config("iid"), num_clients=10, seed=0)
    assert {len(part) for part in parts} == {10, 11}
    assert any(np.any(np.diff(part) > 1) for part in parts)


def test_a_small_alpha_skews_the_classes(make_dataset):
    dataset = make_dataset(1000)

    def purity(alpha):
        parts = partition(dataset, config("dirichlet", alpha=alpha), num_clients=5, seed=0)
        return np.mean([np.bincount(dataset.train.y[p]).max() / len(p) for p in parts])

    assert purity(0.1) > purity(100.0) + 0.2


@pytest.mark.parametrize(
    ("clients", "per_client", "classes"), [(5, 2, 10), (7, 3, 10), (30, 2, 10), (4, 4, 4)]
)
def test_pathological_clients_hold_that_many_classes(make_dataset, clients, per_client, classes):
    dataset = make_dataset(600, classes=classes)
    options = config("pathological", classes_per_client=per_client)
    parts = partition(dataset, options, num_clients=clients, seed=0)
    check(dataset, parts, num_clients=clients, min_records=2)
    assert {len(np.unique(dataset.train.y[part])) for part in parts} == {per_client}


@pytest.mark.parametrize("skew", ["linear", "square", "exponential"])
def test_sizes_grow_with_the_client_number(make_dataset, skew):
    parts = partition(make_dataset(900), config("size_skewed", skew=skew), num_clients=5, seed=0)
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes)
    growth = {"linear": 2.0, "square": 4.0, "exponential": np.e}[skew]
    assert sizes[1] / sizes[0] == pytest.approx(growth, rel=0.2)


@pytest.mark.parametrize("clients", [3, 10, 12])
def test_natural_ids_are_never_split(make_dataset, clients):
    dataset = make_dataset(300, ids=12)
    parts = partition(dataset, config("natural", min_records=1), num_clients=clients, seed=0)
    check(dataset, parts, num_clients=clients, min_records=1)
    holders = [set(dataset.train.site[part].tolist()) for part in parts]
    assert sum(len(ids) for ids in holders) == 12
    assert len(set.union(*holders)) == 12


def test_larger_ids_are_dealt_first(make_dataset):
    dataset = make_dataset(300, ids=12)
    sizes = np.unique(dataset.train.site, return_counts=True)[1]
    parts = partition(dataset, config("natural", min_records=1), num_clients=5, seed=0)
    assert len(parts[0]) == sum(np.sort(sizes)[::-1][::5])


def test_masks_are_partitioned_by_foreground_quartile():
    cells = load_data(DataConfig(name="cells", num_records=60, image_size=16), seed=0)
    labels = partition_labels(cells.train)
    share = cells.train.y.mean(axis=(1, 2))
    assert set(labels.tolist()) == {0, 1, 2, 3}
    assert share[labels == 0].max() <= share[labels == 3].min()
    for name in KINDS:
        parts = partition(cells, config(name, min_records=1), num_clients=3, seed=0)
        check(cells, parts, num_clients=3, min_records=1)


@pytest.mark.parametrize(
    ("options", "clients", "says"),
    [
        (config("iid"), 41, ["federation.num_clients=41", "min_records=2", "80", "=40"]),
        (config("iid"), 500, ["federation.num_clients=500", "there are 80"]),
        (config("iid", min_records=81), 1, ["data.partition.min_records=81", "80"]),
        (config("natural"), 11, ["10 sites", "federation.num_clients=11", "=10"]),
        (config("pathological", classes_per_client=5), 4, ["classes_per_client=5", "4 classes"]),
        (
            config("pathological", classes_per_client=1),
            3,
            ["leaves 1 of 4", "_client=2"],
        ),
        (
            config("size_skewed", skew="exponential"),
            20,
            ["min_records=2", "num_clients="],
        ),
        (config("size_skewed", min_records=10), 8, ["min_records=10", "80 training"]),
        (config("dirichlet", alpha=0.01, min_records=15), 5, ["data.partition.alpha above 0.01"]),
    ],
)
def test_what_cannot_be_satisfied_names_keys_and_a_remedy(make_dataset, options, clients, says):
    with pytest.raises(ConfigError) as caught:
        partition(make_dataset(80, ids=10), options, num_clients=clients, seed=0)
    for text in says:
        assert text in str(caught.value)


def test_the_remedies_work(make_dataset):
    dataset = make_dataset(80)
    with pytest.raises(ConfigError) as caught:
        partition(dataset, config("size_skewed", min_records=10), num_clients=8, seed=0)
    message = str(caught.value)
    records = int(message.split("use data.partition.min_records=")[1].split(",")[0])
    clients = int(message.rsplit("federation.num_clients=", 1)[1])
    for options, count in (
        (config("size_skewed", min_records=records), 8),
        (config("size_skewed", min_records=10), clients),
    ):
        parts = partition(dataset, options, num_clients=count, seed=0)
        check(dataset, parts, num_clients=count, min_records=options.min_records)


def test_natural_without_ids_says_what_to_do(make_dataset):
    with pytest.raises(
        ConfigError, match=r"natural needs to know each record.s site.*Records\.site"
    ):
        partition(make_dataset(20), config("natural"), num_clients=2, seed=0)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("clients", [2, 7, 40])
def test_dirichlet_is_what_flwr_datasets_draws(alpha, clients):
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    for seed in range(5):
        labels = np.random.default_rng(seed).integers(0, 6, 500)
        theirs = DirichletPartitioner(
            num_partitions=clients,
            partition_by="label",
            alpha=alpha,
            min_partition_size=0,
            shuffle=False,
            seed=seed,
        )
        theirs.dataset = Dataset.from_dict({"label": labels, "position": np.arange(500)})
        ours = _dirichlet_draw(labels, alpha, clients, np.random.default_rng(seed))
        for number, part in enumerate(ours):
            assert theirs.load_partition(number)["position"][:] == part.tolist()


@pytest.mark.parametrize("skew", ["linear", "square", "exponential"])
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_skewed_sizes_are_those_of_flwr_datasets(skew, clients):
    from datasets import Dataset
    from flwr_datasets import partitioner

    theirs = getattr(partitioner, f"{skew.capitalize()}Partitioner")(clients)
    theirs.dataset = Dataset.from_dict({"position": np.arange(503)})
    for number, part in enumerate(_size_skewed(503, skew, clients)):
        assert theirs.load_partition(number)["position"][:] == part.tolist()


def test_ten_thousand_clients_are_quick(make_dataset):
    import time

    dataset = make_dataset(60_000, classes=10)
    started = time.perf_counter()
    parts = partition(dataset, config("iid"), num_clients=10_000, seed=0)
    assert time.perf_counter() - started < 1.0
    assert len(parts) == 10_000


def test_more_clients_than_patients_name_a_number_that_works():
    with pytest.raises(ConfigError, match=r"num_clients=31.*30 patients.*num_clients=30 or fewer"):
        partition(whole(study()), config("iid", min_records=1), num_clients=31, seed=0)


def test_the_least_number_of_records_counts_records_of_whole_patients():
    parts = partition(
        whole(study()), config("dirichlet", alpha=5.0, min_records=9), num_clients=6, seed=0
    )
    assert min(map(len, parts)) >= 9
