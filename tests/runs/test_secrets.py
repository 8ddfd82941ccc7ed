"""Everything that a run writes and sends is searched for keys, records and folders."""

from __future__ import annotations

import base64
import os
import re
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from dp_fedmed.assemble import client_runtime, serve
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, DataConfig, compose
from dp_fedmed.data import DataSet, Records
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.privacy.streams.keys import SecretKey
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.reporting.display import LogDisplay
from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parents[2]
PERSON = "zoe-quill"  # in the path of everything that the run touches
SENTINEL = np.array([0.62370193, -0.31415927, 0.27182817, 0.57721567], np.float32)
PIXELS = np.array([17, 230, 5, 99, 180, 33, 201, 76, 149, 2, 250, 61, 118, 87, 222, 40], np.uint8)
STYLES = ("none", "sample", "user", "hybrid")
NETWORK = (
    *(f"data.name={__name__}.load_vectors", "allow_code=[tests]", "training.local_steps=1"),
    *("privacy.sample.grad_mode=hooks", "model._target_=dp_fedmed.models.MLP"),
    "model.args.hidden=[4]",
)
ANOMALY = (
    *("task=textures", f"data.name={__name__}.load_images", "allow_code=[tests]"),
    *("anomaly.backbone=tiny", "anomaly.grid=4", "anomaly.dimension=4", "anomaly.coreset_size=8"),
)


def load_vectors(config: DataConfig, seed: int) -> DataSet:
    """Vectors of four features; every training record of class 1 is the sentinel."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = np.arange(60) % 2
    train = Records(np.where(y[:, None] == 1, SENTINEL, x).astype(np.float32), y)
    rest = Records(x[:20], y[:20])
    return DataSet(train, rest, rest, num_classes=2, class_names=("no", "yes"))


def load_images(config: DataConfig, seed: int) -> DataSet:
    """Normal images; each row of every training image is the sentinel."""
    rng = np.random.default_rng(seed)
    clean = np.zeros((24, 16, 16), np.int64)
    x = rng.integers(0, 255, (24, 1, 16, 16)).astype(np.uint8)
    train = Records(np.broadcast_to(PIXELS, x.shape).copy(), clean)
    marked = clean.copy()
    marked[::2, 4:8, 4:8] = 1
    val, test = Records(x, clean), Records(x, marked)
    return DataSet(train, val, test, num_classes=2, class_names=("normal", "broken"))


class ListeningGrid(LocalGrid):
    """The local engine, which keeps every byte that goes either way."""

    heard: list[bytes]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        sent = list(messages)
        self.heard = self.__dict__.setdefault("heard", [])
        self.heard += [part for message in sent for part in parts(message)]
        for reply in super().send_and_receive(sent, timeout=timeout):
            self.heard += parts(reply)
            yield reply


def parts(message: Message) -> list[bytes]:
    if message.has_error():
        return [str(message.error.reason).encode()]
    found = []
    for name, record in message.content.items():
        found.append(name.encode())
        if isinstance(record, ArrayRecord):
            found += [name.encode() + array.data for name, array in record.items()]
        else:
            found.append(repr(dict(record)).encode())
            found += [v for v in record.values() if isinstance(v, bytes)]
    return found


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every secret key that is made, loaded or derived while a test runs."""
    seen: list[bytes] = []
    original = SecretKey.__init__

    def remember(self: SecretKey, secret: bytes) -> None:
        seen.append(bytes(secret))
        original(self, secret)

    monkeypatch.setattr(SecretKey, "__init__", remember)
    return seen


def forms(secret: bytes) -> set[bytes]:
    encoded = base64.b64encode(secret)
    return {
        *(secret, secret.hex().encode(), secret.hex().upper().encode()),
        *(encoded.rstrip(b"="), base64.urlsafe_b64encode(secret).rstrip(b"=")),
        repr(secret)[2:-1].encode(),
    }


def record_forms() -> list[bytes]:
    """The sentinel as raw bytes in either precision, and its numbers as text."""
    wide = SENTINEL.astype(np.float64)
    texts = {f"{value:.7f}"[:9].lstrip("-") for value in wide}
    return [
        *(SENTINEL[:2].tobytes(), SENTINEL[2:].tobytes(), wide[:1].tobytes(), wide[2:3].tobytes()),
        *(text.encode() for text in texts),
        PIXELS.tobytes(),
        ", ".join(map(str, PIXELS[:6])).encode(),
    ]


def run(config: Config) -> tuple[Path, list[bytes]]:
    runtime = client_runtime(config)
    clients = config.federation.num_clients
    grid = ListeningGrid(build_client_app(runtime=runtime), num_clients=clients, workers=1)
    runtime.preload(clients)
    result = serve(grid, config, LogDisplay())
    assert result.stopped == "completed"
    assert "contributed nothing" not in next(result.run_dir.rglob("run.log")).read_text()
    return result.run_dir, grid.heard


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> None:
    """Everything that a run writes is looked at, pictures too."""


@pytest.mark.parametrize("what", [NETWORK, ANOMALY], ids=["network", "anomaly"])
@pytest.mark.parametrize("style", STYLES)
def test_nothing_secret_is_written_or_sent(
    style: str, what: tuple[str, ...], tmp_path: Path, keys: list[bytes]
) -> None:
    rounds = () if what is ANOMALY else ("federation.num_rounds=2",)
    config = compose(
        [
            *(f"privacy={style}", *what, *rounds, "engine.workers=1", "federation.num_clients=3"),
            *(f"data.path={tmp_path}/{PERSON}/records", f"run_dir={tmp_path}/{PERSON}/run"),
        ]
    )
    folder, heard = run(config)
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    kept = {name: content for name, content in files.items() if "private/secret" not in name}
    assert {"metrics.jsonl", "privacy_report.json", "model.safetensors"} <= kept.keys()
    assert max(map(len, heard)) > 100, "models and answers are among it"
    searched = [*kept.items(), *((f"message {i}", part) for i, part in enumerate(heard))]
    wanted = {form for key in keys for form in forms(key)}
    assert len(keys) >= (1 if style == "none" else 2)
    for name, content in searched:
        assert not [form for form in wanted if form in content], f"a key is in {name}"
        assert not [form for form in record_forms() if form in content], f"a record is in {name}"
    # Settings name folders, for whoever goes on with the run; nothing else does.
    settings = {"config.yaml", "private/ledger.jsonl"}
    for name, content in searched:
        assert name in settings or PERSON.encode() not in content, f"a folder is in {name}"
        assert name in settings or str(Path.home() / "x").encode() not in content


def test_a_clients_failure_stays_in_a_file_of_its_own(tmp_path: Path) -> None:
    config = compose(
        [
            *("privacy=sample", *NETWORK, "engine.workers=1", "federation.num_clients=2"),
            *("federation.num_rounds=1", f"run_dir={tmp_path}/{PERSON}/run"),
        ]
    )
    runtime = client_runtime(config)

    def fail(*_: object) -> None:
        raise ValueError(f"record {SENTINEL.tolist()} in {tmp_path}/{PERSON}/records")

    runtime.preload(2)
    runtime.work.train = fail  # type: ignore[assignment,method-assign]
    grid = ListeningGrid(build_client_app(runtime=runtime), num_clients=2, workers=1)
    result = serve(grid, config, LogDisplay())
    for path in result.run_dir.rglob("*"):
        if path.is_file() and path.name not in ("config.yaml", "ledger.jsonl", "clients.log"):
            assert PERSON.encode() not in path.read_bytes(), path
            assert b"0.62370" not in path.read_bytes(), path
    assert not [part for part in grid.heard if PERSON.encode() in part or b"0.62370" in part]
    own = result.run_dir / "private" / "clients.log"
    assert "0.62370" in own.read_text()
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


AUDITED = """
import os, sys
os.umask(0)
from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation
import dp_fedmed.client_app, dp_fedmed.learning.networks.dp_sgd
loaded = []
sys.addaudithook(lambda event, args: loaded.append(args) if event == "pickle.find_class" else None)
result = run_federation(compose(sys.argv[1:]))
assert result.stopped == "completed", result.stopped
assert not loaded, loaded
"""


def test_private_files_are_for_their_owner_even_without_a_umask_and_no_pickle_is_read(
    tmp_path: Path,
) -> None:
    """In a process of its own: an audit hook and a umask stay for good."""
    words = ["privacy=hybrid", "privacy.sample.grad_mode=hooks", "federation.num_clients=2"]
    more = ["federation.num_rounds=1", "engine.workers=1", "model._target_=dp_fedmed.models.MLP"]
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, *words, *more, f"run_dir={folder}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    private = [folder / "private", *(folder / "private").rglob("*")]
    assert [path for path in private if path.suffix == ".key"]
    for path in private:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_a_sites_keys_are_for_its_owner_even_without_a_umask(tmp_path: Path) -> None:
    from dp_fedmed.site.keys import client_folder, client_key, client_ledger_key
    from dp_fedmed.site.ledger import ClientLedger

    config = compose(["privacy=sample"])
    node = {"client-id": "north", "state-dir": str(tmp_path / "a" / "state")}
    before = os.umask(0)
    try:
        client_key(config, node, "north", 0)
        mac = client_ledger_key(config, node, "north")
        ledger = ClientLedger(client_folder(config, node), "north", mac, durable=True)
        ledger.ledger.append("CHARGE", {})
    finally:
        os.umask(before)
    state = tmp_path / "a" / "state"
    assert sorted(p.name for p in state.iterdir()) == ["ledger.key", "noise.key", "north.jsonl"]
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in state.iterdir()} == {0o600}


def test_a_state_directory_that_others_may_read_is_refused(tmp_path: Path) -> None:
    from dp_fedmed.errors import ConfigError
    from dp_fedmed.site.keys import client_key

    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    node = {"client-id": "north", "state-dir": str(state)}
    with pytest.raises(ConfigError, match=r"state-dir.*0777.*chmod 700"):
        client_key(compose(["privacy=sample"]), node, "north", 0)


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[[], dict[str, bytes]]:
    def build() -> dict[str, bytes]:
        flwr = str(Path(sys.executable).parent / "flwr")
        app = tmp_path / "app"
        copy_checkout(app)
        secret = app / "checkpoints" / "run" / "private" / "secret"
        secret.mkdir(parents=True)
        NoiseKey.create(secret / "noise_0.key")
        (app / "checkpoints" / "run" / "metrics.jsonl").write_text("{}\n")
        (secret.parent / "ledger.jsonl").write_text("{}\n")
        command = [flwr, "build", "--app", str(app)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        archive = zipfile.ZipFile(next(tmp_path.glob("*.fab")))
        return {name: archive.read(name) for name in archive.namelist()}

    return build


def test_flowers_bundle_holds_no_key_no_run_and_no_folder(
    bundle: Callable[[], dict[str, bytes]],
) -> None:
    files = bundle()
    assert "dp_fedmed/client_app.py" in files
    assert "dp_fedmed/site/keys.py" in files
    for name, content in files.items():
        assert Path(name).suffix in (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl", "")
        assert not re.search(rb"dp_fedmed (noise|ledger) key v1\n[0-9a-f]{64}", content), name
        assert str(ROOT).encode() not in content, name
        assert str(Path.home() / "dp").encode() not in content, name
        room = re.sub(r"^(dp_fedmed|tests)/run/", "", name)  # code, and no run's folder
        assert not re.search(r"(^|/)(private|secret|run)/", room), name
