"""What a report says besides its numbers."""

from __future__ import annotations

import pytest

from dp_fedmed.config import compose
from dp_fedmed.run.privacy_report import no_privacy, observers

HELD = [{"unit": unit, "epsilon": 1.0, "delta": 1e-5} for unit in ("record", "client")]
PROMISED = {"epsilon": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ("default", "The server saw every client's update in the clear"),
        ("centralized", "All records were at one site"),
        ("local_only", "Each client trained alone"),
    ],
)
def test_without_privacy_nothing_is_guaranteed(topology: str, said: str) -> None:
    report = no_privacy(compose(["privacy=none", f"federation={topology}"]))
    assert report["guarantees"] == []
    assert report["statement"].startswith(f"No differential privacy. {said}")


@pytest.mark.parametrize(
    ("words", "server"),
    [
        (["privacy=hybrid"], PROMISED),
        (["privacy=sample", "federation=centralized"], None),
        (["privacy=sample", "privacy.noise=server"], None),
        (["privacy=hybrid", "privacy.noise=server"], None),
        (["task=textures", "privacy=sample", "privacy.noise=server"], None),
        (["task=textures", "privacy=sample"], PROMISED),
    ],
)
def test_the_server_is_promised_what_is_noised_before_it_sees_it(
    words: list[str], server: dict[str, float] | None
) -> None:
    first, second = observers(compose(words), HELD)
    assert (first["observer"], second["observer"]) == ("server", "model recipients")
    assert first["record"] == server
    assert first["client"] is None, "it sees whole updates"
    assert (second["record"], second["client"]) == (PROMISED, PROMISED)
