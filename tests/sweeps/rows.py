"""Rows as jobs of a sweep leave them."""

from __future__ import annotations

from typing import Any

PRIVATE = {
    "style": "sample",
    "noise_is_private": True,
    "epsilon": {"sample": 1.0},
    "delta": {"sample": 1e-5},
}


def row(job: int, overrides: dict[str, Any], value: float, **more: Any) -> dict[str, Any]:
    return {
        "job": job,
        "task": "digits",
        "overrides": overrides,
        "seed": overrides.get("seed", 0),
        "status": "completed",
        "metric": "accuracy",
        "topology": "federated",
        "style": "none",
        "val": {"accuracy": value},
        "test": {"accuracy": value},
        "epsilon": {},
        "delta": {},
        **more,
    }
