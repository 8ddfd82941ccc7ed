"""Small anomaly runs for tests, and crashes in the middle of them."""

from __future__ import annotations

import json
from pathlib import Path

TINY = (
    *("task=textures", "data.num_records=60", "data.image_size=32", "engine.workers=1"),
    *("anomaly.backbone=tiny", "anomaly.grid=8", "anomaly.dimension=6", "anomaly.coreset_size=30"),
    *("federation.num_clients=4", "data.partition.min_records=1"),
)
FIXED_NOISE = (
    *("privacy.sample.target_epsilon=null", "privacy.sample.noise_multiplier=3.0"),
    *("privacy.user.target_epsilon=null", "privacy.user.noise_multiplier=2.0"),
    "privacy.accountant=rdp",
)


def report_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "privacy_report.json").read_text())


class Crash(BaseException):
    """Ends a run where a kill would."""


class CrashAt:
    """Crashes at the n-th time that a run comes to a point."""

    def __init__(self, point: str, number: int) -> None:
        self.point, self.left = point, number

    def __call__(self, point: str) -> None:
        self.left -= point == self.point
        if self.left == 0:
            self.left = -1
            raise Crash
