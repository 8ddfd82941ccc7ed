"""Where a client's randomness comes from, and what streams depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.config import compose
from dp_fedmed.errors import SiteRefused
from dp_fedmed.privacy.streams.keys import key_file
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.site.keys import client_folder, client_key


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
    with pytest.raises(SiteRefused, match="keeps its own keys"):
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
