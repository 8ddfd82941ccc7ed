"""Where a client's randomness comes from, and what streams depend on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.config import compose
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.errors import SiteRefused
from dp_fedmed.privacy.streams.keys import key_file
from dp_fedmed.privacy.streams.noise import NoiseKey, Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams, round_digest
from dp_fedmed.site.keys import client_folder, client_key

MODEL = [np.zeros(3)]
SECRETS = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32), client="a")


def test_any_other_round_party_or_phase_has_other_streams() -> None:
    def drawn(secrets: RoundStreams, step: int = 0) -> bytes:
        return secrets.noise(Purpose.RECORD_NOISE, MODEL, step).normal(4).tobytes()

    others = [
        replace(SECRETS, run="other"),
        replace(SECRETS, server_round=2),
        replace(SECRETS, digest=bytes(31) + b"1"),
        replace(SECRETS, client="b"),
        replace(SECRETS, phase=1),
    ]
    assert drawn(SECRETS) == drawn(replace(SECRETS))
    assert len({drawn(SECRETS), drawn(SECRETS, step=1), *map(drawn, others)}) == 7


def test_a_round_is_another_one_with_other_noise_in_force() -> None:
    settings = computed_from(compose(["privacy=sample"]))
    other = computed_from(compose(["privacy=sample", "training.lr=0.123"]))
    digests = {
        round_digest(MODEL, settings, {"noise_multiplier": 1.0}),
        round_digest(MODEL, settings, {"noise_multiplier": 2.0}),
        round_digest([np.ones(3)], settings, {"noise_multiplier": 1.0}),
        round_digest(MODEL, other, {"noise_multiplier": 1.0}),
    }
    assert len(digests) == 4


def test_each_phase_has_its_own_key_file(tmp_path: Path) -> None:
    assert key_file(tmp_path, 0) != key_file(tmp_path, 1)
    assert key_file(str(tmp_path), 1) == tmp_path / "private" / "secret" / "noise_1.key"


def test_a_deployed_client_makes_one_key_and_keeps_it(tmp_path: Path) -> None:
    config, own = compose(["privacy=sample"]), {"state-dir": str(tmp_path / "state")}
    first = client_key(config, own, "a", phase=0)
    assert first.is_private
    assert client_key(config, own, "a", phase=3).fingerprint() == first.fingerprint()
    assert client_folder(config, own) == tmp_path / "state"
    (tmp_path / "state").chmod(0o755)
    with pytest.raises(SiteRefused, match="has mode 0755"):
        client_key(config, own, "a", phase=0)
    with pytest.raises(SiteRefused, match="keeps its own noise key"):
        client_key(config, {}, "a", phase=0)


def test_simulated_clients_have_keys_of_the_runs_own(tmp_path: Path) -> None:
    config, node = compose(["privacy=sample", f"run_dir={tmp_path}"]), {"partition-id": 0}
    key_file(tmp_path, 0).parent.mkdir(parents=True)
    run = NoiseKey.create(key_file(tmp_path, 0))
    keys = {client_key(config, node, name, phase=0).fingerprint() for name in ("a", "a", "b")}
    assert len(keys - {run.fingerprint()}) == 2
    assert client_folder(config, node) == tmp_path / "private" / "clients"


def test_a_public_seed_is_known_to_be_public() -> None:
    config = compose(["privacy=sample", "privacy.noise_seed=7"])
    assert not client_key(config, {"partition-id": 0}, "a", phase=0).is_private
