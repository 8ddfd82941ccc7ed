"""Compares settings: what a guarantee rests on, what rounds compute with, and what has changed."""

from __future__ import annotations

from typing import Any

from dp_fedmed.config.choices import Topology
from dp_fedmed.config.quorum import quorum
from dp_fedmed.config.schema import Config
from dp_fedmed.config.setting import Resume
from dp_fedmed.config.tree import get, leaf_keys, settings
from dp_fedmed.errors import ConfigError


def computed_from(config: Config) -> dict[str, str]:
    """The settings that decide what a round computes, as text: streams depend on all of them.

    >>> from dp_fedmed.config import compose
    >>> one, two = (computed_from(compose([f"engine.workers={n}"])) for n in (1, 2))
    >>> one == two
    True
    """
    return {key: repr(get(config, key)) for key, s in settings().items() if s.is_computed_with}


def changed(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, each with its old and new value."""
    pairs = {key: (get(old, key), get(new, key)) for key in leaf_keys()}
    own = ("run_dir", "resume", "new_phase")
    return {k: pair for k, pair in pairs.items() if pair[0] != pair[1] and k not in own}


def rests_on(keys: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Selects the changed keys that the guarantee rests on: σ, q, T, C, δ, the data, the model.

    >>> list(rests_on({"privacy.user.max_grad_norm": (1.0, 2.0), "training.lr": (0.1, 0.2)}))
    ['privacy.user.max_grad_norm']
    """
    resting = (Resume.new_phase, Resume.never)
    return {key: pair for key, pair in keys.items() if settings()[key].resume in resting}


def refuse_other_run(differences: dict[str, tuple[Any, Any]]) -> None:
    """Refuses to resume with other data, another model or another style, in whatever phase.

    Composition is by client: it holds while each record stays at its client.
    """
    fixed = {key: pair for key, pair in differences.items() if _is_fixed(key, pair[0])}
    own = {key: fixed.pop(key) for key in ("data_ledger", "privacy.style") if key in fixed}
    if fixed:
        raise ConfigError(
            f"{describe_changes(fixed)}: with other data, clients or another model it is another "
            "run; start one (a shared data_ledger adds up what both spend)"
        )
    if "data_ledger" in own:
        raise ConfigError(
            f"{describe_changes({'data_ledger': own['data_ledger']})}: a run that shares a ledger "
            "keeps sharing it; leave the key as it was"
        )
    if "privacy.style" in own:
        before, now = own["privacy.style"]
        raise ConfigError(
            f"privacy.style={now} cannot replace {before}: rounds that are done keep the guarantee "
            "that they had; start a new run"
        )


def _is_fixed(key: str, before: Any) -> bool:
    role = settings()[key].resume
    return role is Resume.never or (role is Resume.once and before is not None)


def describe_changes(differences: dict[str, tuple[Any, Any]]) -> str:
    """Describes changed keys with their old and new values.

    >>> describe_changes({"training.lr": (0.1, 0.2)})
    'training.lr=0.1 (now 0.2)'
    """
    return ", ".join(f"{key}={old} (now {new})" for key, (old, new) in differences.items())


def not_against_server(config: Config) -> list[str]:
    """Lists which guarantees do not hold against the server, as sentences for reports.

    >>> from dp_fedmed.config import compose
    >>> not_against_server(compose(["privacy=sample"]))
    []
    """
    said = []
    if config.federation.topology is Topology.centralized and config.privacy.style.protects_records:
        said.append("One site holds all records and trains: the guarantee is for the model's users")
    elif config.masks:
        said.append(_behind_masks(config))
    elif config.record_noise_at_server:
        other = "null" if config.privacy.style.protects_clients else "client"
        said.append(
            "The server is trusted, and promised nothing: clients send it exact sums over their "
            f"records, and it adds the noise (privacy.noise={other} has each client add its own)"
        )
    if config.client_noise_at_server:
        said.append(
            "One client's guarantee is not against the server, which sees each update before it "
            "adds the noise"
        )
    return said


def _behind_masks(config: Config) -> str:
    agreed = quorum(config)
    return (
        "The server learns the noised sum of a round and no single answer, if it follows the "
        f"protocol of secure aggregation and at most {agreed.colluding} of a round's "
        f"{agreed.clients} clients tell it what they know; a server that makes up clients or "
        "exchanges their keys is not covered"
    )
