import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dp_fedmed.config import DataConfig, PartitionConfig
from dp_fedmed.data import load_data, partition
from dp_fedmed.reporting.partition import partition_rows, partition_table, plot_partition


@pytest.fixture(scope="module")
def cells():
    return load_data(DataConfig(name="cells", num_records=120, image_size=16), seed=0)


def split(dataset, clients):
    return partition(dataset, PartitionConfig(min_records=1), num_clients=clients, seed=0)


def text(table):
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_rows_add_up(make_dataset):
    dataset = make_dataset(90)
    rows = partition_rows(dataset, split(dataset, 7))
    assert [row["client"] for row in rows] == list(range(7))
    assert all(sum(row["classes"].values()) == row["records"] for row in rows)
    total = {name: sum(row["classes"][name] for row in rows) for name in dataset.class_names}
    assert list(total.values()) == np.bincount(dataset.train.y).tolist()


def test_segmentation_rows_have_the_foreground(cells):
    parts = split(cells, 3)
    rows = partition_rows(cells, parts)
    assert rows[1]["foreground"] == pytest.approx(cells.train.y[parts[1]].mean())


def test_a_table_lists_twenty_clients_and_sums_up_the_rest(make_dataset):
    dataset = make_dataset(300)
    shown = text(partition_table(dataset, split(dataset, 33)))
    assert "300 training records, 33 clients" in shown
    assert "│     19 │" in shown
    assert "│     20 │" not in shown
    assert "all 33" in shown
    assert "9–10" in shown


def test_many_classes_are_folded(make_dataset):
    dataset = make_dataset(300, classes=25)
    assert "classes held" in text(partition_table(dataset, split(dataset, 3)))


@pytest.mark.parametrize("clients", [1, 12, 60])
def test_plots_are_pictures(make_dataset, cells, tmp_path, clients):
    for name, dataset in (("a", make_dataset(300, classes=12)), ("b", cells)):
        file = plot_partition(dataset, split(dataset, clients), tmp_path / f"{name}.png")
        with Image.open(file) as picture:
            assert picture.format == "PNG"
            assert np.asarray(picture.convert("L")).std() > 5


def test_numbers_are_counted_by_ranges_of_the_target(tmp_path):
    data = load_data(DataConfig(name="diabetes"), seed=0)
    for clients in (3, 60):
        parts = split(data, clients)
        rows = partition_rows(data, parts)
        assert all(sum(row["classes"].values()) == row["records"] for row in rows)
        picture = plot_partition(data, parts, tmp_path / "partition.png")
        assert Image.open(picture).size[0] > 1000
    shown = text(partition_table(data, split(data, 3)))
    assert "25–105.2" in shown
    assert "points" in shown
