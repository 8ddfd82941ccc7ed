"""`dp-fedmed data`: who would train on which records."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.commands.arguments import Arguments, config_of, output_directory

HELP = """\
dp-fedmed data [overrides]: who would train on which records, as a table and a picture.
Takes the same overrides as dp-fedmed run, for example
  dp-fedmed data task=digits data.partition.name=dirichlet data.partition.alpha=0.1
and writes partition.png into the folder where it is called.
"""


def main(arguments: list[str]) -> int:
    """Print and draw the partition that the overrides describe."""
    given = Arguments(HELP).read(arguments)
    from rich.console import Console

    from dp_fedmed.data import load_data, training_parts
    from dp_fedmed.reporting.partition import partition_table, plot_partition

    config = config_of(given.overrides)
    data = load_data(config.data, seed=config.seed)
    parts = training_parts(config, data)
    Console().print(partition_table(data, parts))
    picture = output_directory(Path.cwd()) / "partition.png"
    plot_partition(data, parts, picture)
    print(f"Picture: {picture}")
    return 0
