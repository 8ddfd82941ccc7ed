"""Which settings a guarantee rests on, which only steer the computation, and what has changed."""

from __future__ import annotations

from typing import Any

from dp_fedmed.config import Config, Topology, get, leaf_keys
from dp_fedmed.errors import ConfigError

#: What may differ between two stretches of one run without touching what a round computes.
ELSEWHERE = (
    "engine.",
    "checkpoint.",
    "federation.num_rounds",
    "federation.evaluate_every",
    "federation.client_evaluate_",
    "federation.round_timeout",
    "federation.connect_timeout",
    "federation.min_clients",
    "data.path",  # the records themselves are compared, not where they lie
    "data.id",
    "task.metric",
    "data_ledger",
    "allow_code",  # whoever allows it, the code that is named is `model.` and `data.`
    "run_dir",
    "resume",
    "new_phase",
)
#: What steers local training and the server's step, but none of σ, q, T, C or the unit.
STEERING = (
    "training.optimizer",
    "training.lr",
    "training.momentum",
    "training.weight_decay",
    "training.threads",
    "training.device",
    "federation.server_",
    "privacy.sample.grad_mode",
    "privacy.sample.physical_batch_size",
)


#: What the server decides for all and tells: it is digested as it is in force, not as configured.
TOLD = ("privacy.sample.grad_mode", "federation.num_clients")
#: What says which records are where: with other data or another model it would be another run.
IDENTITY = (
    *("task.name", "task.kind", "data.", "model.", "anomaly."),
    *("seed", "federation.num_clients", "federation.topology"),
)


def computed_from(config: Config) -> dict[str, str]:
    """The settings that decide what a round computes, as text: streams depend on all of them.

    >>> from dp_fedmed.config import compose
    >>> one, two = (computed_from(compose([f"engine.workers={n}"])) for n in (1, 2))
    >>> one == two
    True
    """
    left_out = ELSEWHERE + TOLD
    return {key: repr(get(config, key)) for key in leaf_keys() if not key.startswith(left_out)}


def changed(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, with both."""
    found = {}
    for key in leaf_keys():
        before, after = get(old, key), get(new, key)
        if before != after and key not in ("run_dir", "resume", "new_phase"):
            found[key] = (before, after)
    return found


def rests_on(keys: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Those of the changed keys on which the guarantee rests: σ, q, T, C, δ, the data, the model.

    >>> list(rests_on({"privacy.user.max_grad_norm": (1.0, 2.0), "training.lr": (0.1, 0.2)}))
    ['privacy.user.max_grad_norm']
    """
    return {key: pair for key, pair in keys.items() if not key.startswith(ELSEWHERE + STEERING)}


def refuse_other_run(differences: dict[str, tuple[Any, Any]]) -> None:
    """Refuse to go on with other data, another model or another style, in whatever phase.

    Composition is by client: it holds while each record stays at its client.

    Raises:
        ConfigError: naming the keys.
    """
    other = {k: v for k, v in differences.items() if k.startswith(IDENTITY) and k != "data.path"}
    if other.get("data.id", ("",))[0] is None:  # a name for the same data
        del other["data.id"]
    if other:
        raise ConfigError(
            f"{describe_changes(other)}: with other data, clients or another model it is another "
            "run; start one (a shared data_ledger adds up what both spend)"
        )
    if differences.get("data_ledger", (None,))[0] is not None:
        raise ConfigError(
            f"{describe_changes({'data_ledger': differences['data_ledger']})}: a run that shares a "
            "ledger goes on sharing it; leave the key as it was"
        )
    if "privacy.style" in differences:
        before, now = differences["privacy.style"]
        raise ConfigError(
            f"privacy.style={now} cannot replace {before}: rounds that are done keep the guarantee "
            "that they had; start a new run"
        )


def describe_changes(differences: dict[str, tuple[Any, Any]]) -> str:
    """Changed keys with both values.

    >>> describe_changes({"training.lr": (0.1, 0.2)})
    'training.lr=0.1 (now 0.2)'
    """
    return ", ".join(f"{key}={old} (now {new})" for key, (old, new) in differences.items())


def not_against_server(config: Config) -> list[str]:
    """What the server sees in spite of a guarantee: what the observer table says, in sentences.

    >>> from dp_fedmed.config import compose
    >>> not_against_server(compose(["privacy=sample"]))
    []
    """
    said = []
    if config.federation.topology is Topology.centralized and config.privacy.style.protects_records:
        said.append("One site holds all records and trains: the guarantee is for the model's users")
    elif config.record_noise_at_server:
        said.append(
            "The server is trusted, and promised nothing: clients send it exact means of their "
            "images' vectors, and it adds the noise (anomaly.server_trusted=false has each client "
            "add its own)"
        )
    if config.privacy.style.protects_clients:
        said.append(
            "One client's guarantee is not against the server, which sees each update before it "
            "adds the noise"
        )
    return said
