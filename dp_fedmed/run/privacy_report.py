"""`privacy_report.json`: what a run guarantees to whom, with every number's unit beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dp_fedmed.config import Config, PrivacyStyle, TaskKind, Topology
from dp_fedmed.config.arithmetic import not_against_server
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.privacy import History, group_epsilon
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.accounting.history import Method

SCHEMA = 1

OUTSIDE_ALWAYS = (
    "repeated runs on the same data, for example to tune settings: each adds to what is spent",
    "the number of records of each client, which counts as public",
)
OUTSIDE_VALIDATION = (
    "validation and test metrics: they are computed on the server's own validation and test "
    "records, which this guarantee does not protect"
)
OUTSIDE_ANOMALY = (
    "the threshold, which is a quantile of the server's validation scores, and pictures.png, which "
    "shows test images as they are"
)
OUTSIDE_PARTITION = (
    "partition.png and partition.json of a simulation, which show how many records of each class, "
    "or of each range of the target, a client holds"
)
OUTSIDE_PICTURES = "pictures.png, which shows test images as they are"
OUTSIDE_POINTS = "evaluation.json, which holds test records' targets and predictions as they are"
ODOMETER = (
    "the choice of later phases after looking at earlier results: ε is then an odometer's reading, "
    "which holds for the phases as they were run, and not a bound that was fixed beforehand"
)
OUTSIDE_CLIENT_METRICS = (
    "training losses and metrics of clients: they are kept in private/ and are not to be published"
)


SEEN = {
    Topology.federated: "The server saw every client's update in the clear, and the",
    Topology.centralized: "All records were at one site, and the",
    Topology.local_only: "Each client trained alone, and each",
}


def no_privacy(config: Config) -> dict[str, Any]:
    """The report of a run without differential privacy."""
    topology = config.federation.topology
    return {
        "schema": SCHEMA,
        "style": str(PrivacyStyle.none),
        "topology": str(topology),
        "guarantees": [],
        "statement": (
            f"No differential privacy. {SEEN[topology]} final model, its selection and all metrics "
            "may reveal any training record."
        ),
    }


def privacy_report(
    config: Config,
    guard: PrivacyGuard,
    rounds: int,
    all_runs: dict[str, Any] | None = None,
    *,
    final: bool = True,
) -> dict[str, Any]:
    """The report after so many rounds.

    Cohorts are secret in user and hybrid styles, so there each client is shown with the most
    rounds that it can have taken part in, not with those that it did.

    Args:
        config: the run's configuration.
        guard: what was spent.
        rounds: how many are done.
        all_runs: what all runs on the same data have spent, if they share a ledger.
        final: whether the run ends here; in between, what takes long is bounded or left out.
    """
    style = config.privacy.style
    guarantees = []
    if guard.plan.clients:
        guarantees.append(_record_guarantee(config, guard, final=final))
    if guard.plan.user_event is not None:
        guarantees.append(_client_guarantee(config, guard))
    private = guard.accountant.is_private and config.privacy.noise_seed is None
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "style": str(style),
        "topology": str(config.federation.topology),
        "rounds": rounds,
        "guarantees": guarantees,
        "observers": observers(config, guarantees),
        "conservative_sum": {
            "name": "conservative sum of the accounting protocol",
            "epsilon": math.fsum(g["epsilon"] for g in guarantees),
            "delta": math.fsum(g["delta"] for g in guarantees),
        },
        "phases": guard.phases,
        "outside_the_guarantee": [*_outside(config), *([ODOMETER] if guard.phases > 1 else [])],
        "trust_boundary": _trust_boundary(config),
        "noise_is_private": private,
    }
    if all_runs is not None:
        report["all_runs_on_this_data"] = all_runs
    if not private:
        report["warning"] = "not private: noise seed is public"
    return report


def observers(config: Config, guarantees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who is promised what: the server sees more than whoever receives the model.

    Where it adds the noise it sees what is noised: whole updates, or exact sums over a client's
    records. Where clients add the noise, all of it or shares, it sees what is noised already. Where
    all records are pooled it holds them.
    """
    style, pooled = config.privacy.style, config.federation.topology is Topology.centralized
    by_unit = {g["unit"]: g for g in guarantees}
    own_noise = style.protects_clients and not config.client_noise_at_server
    seen = {"record": config.record_noise_at_server or pooled, "client": not own_noise}
    rows = []
    for observer in ("server", "model recipients"):
        row: dict[str, Any] = {"observer": observer}
        for unit in ("record", "client"):
            held = by_unit.get(unit)
            if held is not None and not (observer == "server" and seen[unit]):
                row[unit] = {"epsilon": held["epsilon"], "delta": held["delta"]}
            else:
                row[unit] = None
        rows.append(row)
    return rows


def _outside(config: Config) -> list[str]:
    own = {
        TaskKind.anomaly: [OUTSIDE_ANOMALY],
        TaskKind.segmentation: [OUTSIDE_PICTURES],
        TaskKind.regression: [OUTSIDE_POINTS],
    }
    return [
        OUTSIDE_VALIDATION,
        *own.get(config.task.kind, []),
        OUTSIDE_CLIENT_METRICS,
        OUTSIDE_PARTITION,
        *OUTSIDE_ALWAYS,
    ]


def _trust_boundary(config: Config) -> str:
    if config.federation.topology is Topology.centralized:
        return "one site holds all records and adds the noise; whoever receives the model does not"
    simulated = (
        "simulated: the clients' keys derive from the run's key on one machine; in a "
        "deployment each client draws its own and the server never has it"
    )
    return ". ".join([simulated, *not_against_server(config)])


def _record_guarantee(config: Config, guard: PrivacyGuard, *, final: bool) -> dict[str, Any]:
    delta = guard.plan.delta_sample or 0.0
    method: Method = config.privacy.accountant.value
    histories = guard.published_histories()
    epsilons = guard.client_epsilons(histories, exact=final)
    clients: dict[str, dict[str, Any]] = {}
    for name, history in histories.items():
        plan = guard.last_plan(name)
        clients[name] = {
            "records": plan.records,
            "noise_multiplier": plan.noise_multiplier,
            "sample_rate": plan.sample_rate,
            "steps": sum(steps for _, _, steps in history.rows()),
            "rounds": guard.all_rounds_shown(name),
            "history": history.rows(),
            "epsilon": epsilons[name],
        }
        if name not in guard.plan.clients:
            clients[name]["left"] = True
    worst = max(clients, key=lambda name: epsilons[name])
    is_statistic = config.task.kind is TaskKind.anomaly
    return _group_guarantee(config, histories, epsilons, delta, final=final) | {
        "unit": "record",
        "unit_in_words": (
            f"one {'image' if is_statistic else 'record'} of one site; a patient with several "
            "records is not a record"
        ),
        "adjacency": next(iter(guard.plan.clients.values())).adjacency,
        "sampling": _record_sampling(config),
        "max_grad_norm": config.privacy.sample.max_grad_norm,
        "noise_added_by": noise_added_by(config),
        "epsilon": epsilons[worst],
        "epsilon_of_one_round": guard.epsilon_of_one_round("record"),
        "delta": delta,
        "target_epsilon": config.privacy.sample.target_epsilon,
        "accountant": str(config.privacy.accountant),
        "epsilon_by_other_accountant": _other(histories[worst], delta, method),
        "worst_client": worst,
        "rounds_shown": "planned worst case" if guard.hidden else "realised",
        "assumption": _assumption(config),
        "clients": clients,
    }


def noise_added_by(config: Config) -> str:
    """Who adds the noise of records, in words."""
    if config.record_noise_at_server:
        return "the server"
    return "all clients, a share each" if config.sums_records else "each client"


def _assumption(config: Config) -> str:
    worst = "a record sits at one site only: the guarantee is the worst client's"
    if config.data.group_by is not None:
        worst += (
            "; all records of a patient are at one site, which a simulation checks and each "
            "deployed site promises"
        )
    if config.federation.topology is Topology.local_only:
        return f"{worst}, for all clients' models together; each model alone has its own client's ε"
    return worst


def _record_sampling(config: Config) -> str:
    if config.task.kind is not TaskKind.anomaly:
        return "Poisson batches"
    if not config.releases_rows:
        return "every image in every round"
    m = config.anomaly.rows_per_image
    return (
        f"every image, with at most {m} of its patches, drawn without looking at them: replacing "
        f"an image moves the rows, each of norm at most 1, by at most 2·√{m}"
    )


def _group_guarantee(
    config: Config,
    histories: Mapping[str, History],
    epsilons: Mapping[str, float],
    delta: float,
    *,
    final: bool,
) -> dict[str, Any]:
    """What the record-level guarantee is worth for one patient: at the client where it is worst.

    That need not be the client with the largest ε for a record. It takes long, so that a report
    between rounds promises a patient nothing yet.
    """
    if config.data.group_by is None:
        return {"group": None}
    size = config.data.max_records_per_group
    note = "targets and budgets are per record; this is their worth for a patient"
    found: dict[str, float] = {}
    if size == 1:
        found = dict(epsilons)
    elif final:
        found = {
            name: group_epsilon(history, size=size, delta=delta)
            for name, history in histories.items()
        }
    else:
        note += "; it is computed when the run ends"
    worst = max(found, key=lambda name: found[name], default=None)
    return {
        "group": {
            "unit_in_words": (
                f"one patient with at most {size} record{'' if size == 1 else 's'}, all at one site"
            ),
            "max_records": size,
            "epsilon": None if worst is None else found[worst],
            "delta": delta,
            "worst_client": worst,
            "note": note,
        }
    }


def _client_guarantee(config: Config, guard: PrivacyGuard) -> dict[str, Any]:
    event = guard.plan.user_event
    if event is None:
        raise ValueError("no client-level guarantee in this style")
    delta = guard.plan.delta_user or 0.0
    history = guard.accountant.history("client")
    return {
        "unit": "client",
        "unit_in_words": "one whole client with all its records",
        "adjacency": event.adjacency,
        "sampling": event.sampling,
        "sample_rate": event.sample_rate if event.sample_rate is not None else 1.0,
        "noise_multiplier": event.noise_multiplier,
        "max_grad_norm": config.privacy.user.max_grad_norm,
        "clipping": str(config.privacy.user.clipping),
        "steps": sum(steps for _, _, steps in history.rows()),
        "history": history.rows(),
        "epsilon": guard.accountant.get_cumulative_user_epsilon(),
        "epsilon_of_one_round": guard.epsilon_of_one_round("client"),
        "delta": delta,
        "target_epsilon": config.privacy.user.target_epsilon,
        "accountant": str(config.privacy.accountant),
        "epsilon_by_other_accountant": _other(history, delta, config.privacy.accountant.value),
        "assumption": (
            "cohorts stay secret: amplification by sampling rests on it"
            if event.key[2] < 1.0
            else "none about cohorts: no amplification by sampling is claimed"
        ),
    }


def _other(history: History, delta: float, method: Method) -> dict[str, float] | None:
    """ε by another accountant than the one in force: RDP, unless that is it."""
    if not history:
        return None
    other: Method = "pld" if method == "rdp" else "rdp"
    return {other: history.epsilon(delta=delta, method=other)}


def checkpoint_section(
    config: Config, guard: PrivacyGuard, *, final: bool = True
) -> dict[str, Any]:
    """The privacy section of a checkpoint: what the accounting protocol says one must hold."""
    histories = guard.published_histories() if guard.plan.clients else {}
    delta, epsilons = guard.plan.delta_sample, guard.client_epsilons(histories, exact=final)
    worst = max(histories, key=lambda name: epsilons[name], default=None)
    spent = guard.published_epsilons(exact=final)
    return {
        "style": str(config.privacy.style),
        "phase": guard.phase,
        "accountant": guard.accountant.method,
        "target_delta": delta if delta is not None else guard.plan.delta_user,
        "user_target_delta": guard.plan.delta_user,
        "sample_history": [] if worst is None else histories[worst].rows(),
        "user_history": guard.accountant.get_history("client"),
        "cumulative_sample_epsilon": spent.get(Level.sample, 0.0),
        "cumulative_user_epsilon": spent.get(Level.user, 0.0),
        "noise_is_private": guard.accountant.is_private,
    }
