"""Who has what: the partition of the training records as rows, as a table, and as a picture.

All of it is computed from simulated clients' raw counts: it describes the simulation and is not
covered by any privacy guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.reporting import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

LISTED_CLIENTS = 20
MOST_COLUMNS = 10


def partition_rows(dataset: DataSet, parts: Sequence[Array]) -> list[dict[str, Any]]:
    """One row per client: ``client``, ``records``, ``classes`` (name to count).

    For segmentation ``classes`` counts pixels, and ``foreground`` is the share that is not class 0;
    normal images, for anomaly detection, are counted by category, and records of a regression by
    public bins of their target.

    >>> from dp_fedmed.config import DataConfig
    >>> from dp_fedmed.data import load_data
    >>> partition_rows(load_data(DataConfig(), seed=0), [np.arange(5), np.arange(5, 370)])[1]
    {'client': 1, 'records': 365, 'classes': {'malignant': 13..., 'benign': 2...}}
    """
    dataset, rows = by_category(dataset), []
    for client, counts in enumerate(class_counts(dataset, parts)):
        row: dict[str, Any] = {"client": client, "records": len(parts[client])}
        row["classes"] = dict(zip(dataset.class_names, counts.tolist(), strict=True))
        if dataset.is_segmentation:
            row["foreground"] = float(counts[1:].sum() / max(int(counts.sum()), 1))
        rows.append(row)
    return rows


def by_category(dataset: DataSet) -> DataSet:
    """Normal images with their category as class, numbers with their bin; others as they are.

    >>> from dp_fedmed.config import DataConfig
    >>> from dp_fedmed.data import load_data
    >>> images = load_data(DataConfig(name="textures", num_records=60, image_size=32), seed=0)
    >>> by_category(images).class_names
    ('woven', 'metal', 'tissue')
    """
    if dataset.is_regression:
        target = dataset.targets[0]
        train, val, test = (Records(p.x, target.bins(p.y)) for p in dataset.parts().values())
        names = target.bin_names
        return DataSet(train, val, test, num_classes=len(names), class_names=names)
    names = dataset.site_names
    if not dataset.is_segmentation or not names or dataset.train.y.any():
        return dataset
    train, val, test = (Records(p.x, np.asarray(p.site)) for p in dataset.parts().values())
    return DataSet(train, val, test, num_classes=len(names), class_names=names)


def class_counts(dataset: DataSet, parts: Sequence[Array]) -> Array:
    """(clients, classes): records of each class, or pixels for segmentation."""
    labels = dataset.train.y.reshape(len(dataset.train), -1)
    counts = np.empty((len(parts), dataset.num_classes), dtype=np.int64)
    for client, part in enumerate(parts):
        counts[client] = np.bincount(labels[part].ravel(), minlength=dataset.num_classes)
    return counts


def partition_table(dataset: DataSet, parts: Sequence[Array]) -> Table:
    """A table for the terminal: the first clients one by one, then all of them in one line.

    Beyond ten classes the counts are folded into "classes held".
    """
    from rich.table import Table

    dataset = by_category(dataset)
    rows = partition_rows(dataset, parts)
    folded = dataset.num_classes > MOST_COLUMNS
    table = Table(title=f"{sum(map(len, parts))} training records, {_clients(len(parts))}")
    table.add_column("client", justify="right")
    table.add_column("records", justify="right")
    if dataset.is_segmentation:
        table.add_column("foreground", justify="right")
    elif folded:
        table.add_column("classes held", justify="right")
    else:
        for name in dataset.class_names:
            table.add_column(name, justify="right")
    for row in rows[:LISTED_CLIENTS]:
        cells = _cells(row, folded)
        table.add_row(str(row["client"]), str(row["records"]), *cells)
    if len(rows) > LISTED_CLIENTS:
        table.add_row("…", "…", *["…"] * len(cells))
    table.add_section()
    sizes = np.array([row["records"] for row in rows])
    span = f"{sizes.min()}–{sizes.max()}"
    if dataset.is_segmentation:
        shares = [row["foreground"] for row in rows]
        spans = [f"{min(shares):.1%}–{max(shares):.1%}"]
    elif folded:
        held = [sum(count > 0 for count in row["classes"].values()) for row in rows]
        spans = [f"{min(held)}–{max(held)}"]
    else:
        counts = [list(row["classes"].values()) for row in rows]
        spans = [f"{min(column)}–{max(column)}" for column in zip(*counts, strict=True)]
    table.add_row(f"all {len(rows)}", span, *spans, style="bold")
    return table


def _cells(row: dict[str, Any], folded: bool) -> list[str]:
    if "foreground" in row:
        return [f"{row['foreground']:.1%}"]
    counts = row["classes"].values()
    if folded:
        return [str(sum(count > 0 for count in counts))]
    return [str(count) if count else "·" for count in counts]


def plot_partition(dataset: DataSet, parts: Sequence[Array], path: str | Path) -> Path:
    """Draw the partition into a PNG file and return its path.

    Up to 40 clients are bars stacked by class; more are a curve of sizes above a heat map of class
    shares, clients sorted by size. Segmentation shows sizes and the foreground fraction.
    """
    what = dataset.targets[0].name if dataset.is_regression else "class"
    dataset = by_category(dataset)
    sizes = np.array([len(part) for part in parts])
    counts = class_counts(dataset, parts)
    figure = drawing.new_figure(9.0, 5.2, facecolor="white")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr,call-arg]
    figure.suptitle(
        f"Who holds the {sizes.sum():,} training records ({_clients(len(parts))})", fontsize=13
    )
    many = len(parts) > drawing.MOST_BARS
    if not many and not dataset.is_segmentation:
        bottom = figure.add_subplot()
        _stacked_bars(bottom, counts, dataset.class_names, what)
    else:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.4 if many else 1))
        order = np.argsort(-sizes, kind="stable") if many else np.arange(len(parts))
        drawing.bars(top, sizes[order].tolist(), drawing.BLUE)
        top.set_ylabel("records")
        drawing.whole_numbers(top.yaxis)
        drawing.tidy(top, "y")
        if dataset.is_segmentation:
            _foreground(bottom, counts[order])
        else:
            _heatmap(bottom, counts[order], dataset.class_names)
    label = "client, largest first" if many else "client"
    drawing.client_axis(bottom, [str(number) for number in range(len(parts))], label, most=20)
    drawing.save_png(figure, Path(path), dpi=150)
    return Path(path)


def _stacked_bars(axes: Axes, counts: Array, names: tuple[str, ...], what: str) -> None:
    drawing.stacked_bars(
        axes, {name: counts[:, place].tolist() for place, name in enumerate(names)}
    )
    axes.set_ylabel("records")
    handles, labels = axes.get_legend_handles_labels()
    # Read from the top down, as the bars are stacked; at most 20 entries per column.
    axes.legend(
        handles[::-1],
        labels[::-1],
        title=what,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        ncols=-(-len(names) // 20),
        fontsize=9,
    )
    drawing.tidy(axes, "y")


def _foreground(axes: Axes, counts: Array) -> None:
    share = 100.0 * counts[:, 1:].sum(axis=1) / np.maximum(counts.sum(axis=1), 1)
    drawing.bars(axes, share.tolist(), drawing.GREEN)
    overall = 100.0 * counts[:, 1:].sum() / max(int(counts.sum()), 1)
    axes.axhline(overall, color=drawing.MUTED, linestyle="--", linewidth=1.0)
    axes.set_ylim(0, max(1.0, 1.3 * float(share.max())))
    axes.annotate(
        f"all clients: {overall:.1f} %",
        (1.0, 1.0),
        xycoords="axes fraction",
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=9,
        color=drawing.MUTED,
    )
    axes.set_ylabel("foreground pixels (%)")
    drawing.tidy(axes, "y")


def _heatmap(axes: Axes, counts: Array, names: tuple[str, ...]) -> None:
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(
        share.T, aspect="auto", cmap=drawing.SHARES, vmin=0.0, vmax=1.0, interpolation="nearest"
    )
    axes.set_yticks(range(len(names)), names, fontsize=9 if len(names) <= 12 else 6)
    axes.figure.colorbar(image, ax=axes, label="share of the client's records", pad=0.01)


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count:,} clients"
