"""Which settings a guarantee rests on, which only steer the computation, and what has changed."""

from __future__ import annotations

from typing import Any

from dp_fedmed.config import Config, get, leaf_keys

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
    "task.metric",
    "data_ledger",
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


def computed_from(config: Config) -> dict[str, str]:
    """The settings that decide what a round computes, as text: streams depend on all of them.

    >>> from dp_fedmed.config import compose
    >>> one, two = (computed_from(compose([f"engine.workers={n}"])) for n in (1, 2))
    >>> one == two
    True
    """
    return {key: repr(get(config, key)) for key in leaf_keys() if not key.startswith(ELSEWHERE)}


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
