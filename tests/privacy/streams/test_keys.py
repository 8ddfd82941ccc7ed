"""Keys stay secret: in files, in memory, and in what is printed."""

import copy
import dataclasses
import os
import pickle
import stat

import pytest

from dp_fedmed.privacy import NoiseKey, NoiseStream
from tests.privacy.streams.inputs import draw, noise_id


def test_key_files_are_private_exclusive_and_round_trip(tmp_path):
    path = tmp_path / "noise.key"
    key = NoiseKey.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert draw(noise_id(), NoiseKey.load(path)) == draw(noise_id(), key)
    assert NoiseKey.load(path).is_private
    with pytest.raises(FileExistsError):
        NoiseKey.create(path)


def test_key_files_ignore_a_permissive_umask(tmp_path):
    old = os.umask(0)
    try:
        NoiseKey.create(tmp_path / "k")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_could_read_is_refused(tmp_path, mode):
    path = tmp_path / "noise.key"
    NoiseKey.create(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=f"mode {mode:04o}"):
        NoiseKey.load(path)


@pytest.mark.parametrize("damage", [b"", b"x", b"dp_fedmed noise key v1\n", b"zz" * 60])
def test_a_damaged_key_is_refused_without_showing_it(tmp_path, damage):
    path = tmp_path / "noise.key"
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="not a dp_fedmed noise key"):
        NoiseKey.load(path)


def test_flipped_and_truncated_key_files_are_refused(tmp_path):
    path = tmp_path / "noise.key"
    NoiseKey.create(path)
    content = path.read_bytes()
    for broken in (content[:-3], content + b"a", content.replace(b"v1", b"v2")):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="not a dp_fedmed noise key"):
            NoiseKey.load(path)


def test_symbolic_links_and_missing_files_are_refused(tmp_path):
    NoiseKey.create(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        NoiseKey.load(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        NoiseKey.load(tmp_path / "missing")


def test_a_destroyed_key_is_gone_from_memory_and_disk(tmp_path):
    path = tmp_path / "noise.key"
    key = NoiseKey.create(path)
    key.destroy(path)
    assert not path.exists()
    with pytest.raises(RuntimeError, match="destroyed"):
        key.stream(noise_id())


@pytest.mark.parametrize("secret", [NoiseKey.generate(), NoiseStream.fresh()])
def test_secrets_cannot_be_printed_pickled_or_copied(secret):
    raw = secret._secret if isinstance(secret, NoiseKey) else secret._key.to_bytes(32, "little")
    for text in (repr(secret), str(secret), f"{secret}", repr([secret]), repr({"k": secret})):
        assert bytes(raw).hex() not in text
        assert "hidden" in text
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            leak(secret)
    with pytest.raises(TypeError):
        vars(secret)


def test_a_key_inside_a_dataclass_does_not_leak_through_asdict():
    @dataclasses.dataclass
    class Holder:
        key: NoiseKey

    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        dataclasses.asdict(Holder(NoiseKey.generate()))
