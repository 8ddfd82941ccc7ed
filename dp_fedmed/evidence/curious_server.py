"""Real rounds as a curious server sees it: the model it sent and what one site answered.

The server, the messages and the site are the real apps. Only the other sites are spared their
work: they answer with an error, as sites that are switched off would.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message
from flwr.clientapp import ClientApp

from dp_fedmed.assemble import client_runtime, serve
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config
from dp_fedmed.data import Records
from dp_fedmed.engines.local_grid import FIRST_NODE_ID, LocalGrid
from dp_fedmed.engines.worker_pool import Job, Outcome
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.reporting.display import LogDisplay


@dataclass(frozen=True)
class Observed:
    """What the server has after its rounds with one site, and the site's records to compare."""

    sent: model_arrays.State  # the model that the site was sent first
    answers: tuple[model_arrays.State, ...]  # round by round
    records: Records  # its training records, which no server sees


class _ListeningGrid(LocalGrid):
    """Lets the first site train, and keeps what goes to it and comes from it."""

    def __init__(self, app: ClientApp, *, num_clients: int) -> None:
        super().__init__(app, num_clients=num_clients, workers=1)
        self.heard: list[tuple[Message, Outcome]] = []

    def _run_here(self, job: Job) -> Outcome:
        trains = job.message.metadata.message_type == "train"
        if trains and job.node_id != FIRST_NODE_ID:
            return Outcome(error="switched off")
        outcome = super()._run_here(job)
        if trains:
            self.heard.append((job.message, outcome))
        return outcome


def observe(config: Config) -> Observed:
    """Run a configuration's rounds, and return what its first site gave away.

    Raises:
        ConfigError: if the site could not train.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = config.replace(run_dir=str(Path(folder) / "run"))
        runtime = client_runtime(config)
        count = config.federation.num_clients
        grid = _ListeningGrid(build_client_app(runtime=runtime), num_clients=count)
        runtime.preload(count)
        serve(grid, config, LogDisplay())
        records, _ = runtime.records({"partition-id": 0, "num-partitions": count})
    answers = [answer.content for _, answer in grid.heard if answer.content is not None]
    if not answers or len(answers) < len(grid.heard):
        reasons = [answer.error for _, answer in grid.heard if answer.error is not None]
        raise ConfigError(
            f"with these settings the first site does not train: {(*reasons, 'it is not asked')[0]}"
        )
    sent = grid.heard[0][0].content.array_records["arrays"]
    return Observed(
        model_arrays.from_record(sent),
        tuple(model_arrays.from_record(each.array_records["arrays"]) for each in answers),
        records,
    )
