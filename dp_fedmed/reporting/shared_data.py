"""What all runs on the same data have spent, without and with one that is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dp_fedmed.config import Config
from dp_fedmed.federation.charges import to_entries
from dp_fedmed.planning.forecast import Forecast
from dp_fedmed.run.data_ledger import DataLedger, RunSpending

Bounds = Mapping[str, Mapping[str, float] | None]


@dataclass(frozen=True)
class SharedSpending:
    """ε and δ by unit of all runs on the same data; None where no run has used them yet."""

    data_id: str | None
    runs: int
    before: Bounds | None = None
    after: Bounds | None = None


def shared_spending(config: Config, made: Forecast) -> SharedSpending | None:
    """Read the shared ledger; None where a run has none, or spends nothing.

    Raises:
        LedgerError: if the shared ledger or its key is damaged, or this run's events do not compose
            with those of others.
    """
    plan = made.plan
    if config.data_ledger is None or plan is None:
        return None
    path = Path(config.data_ledger)
    if not path.exists() and not path.with_name(f"{path.name}.key").exists():
        return SharedSpending(config.data.id, 0)  # reading must not make one
    ledger = DataLedger(path, data_id=config.data.id or "", run="")
    ledger.refuse_other_neighbours(plan.user_event)
    record = plan.delta_sample or plan.delta_user or 1e-5
    client = plan.delta_user or plan.delta_sample or 1e-5
    planned = RunSpending()
    user = made.client_event
    planned.add(
        {
            "federation": None if user is None else user.to_json(),
            "clients": to_entries(made.record_events),
        }
    )
    before = ledger.totals(delta_record=record, delta_client=client)
    after = ledger.totals(delta_record=record, delta_client=client, planned=planned)
    bounds = [{unit: held[unit] for unit in ("record", "client")} for held in (before, after)]
    return SharedSpending(config.data.id, before["runs"], *bounds)
