"""The same apps on every engine: the same model, to the last bit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from dp_fedmed.config import Config, compose
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.flower_compat import RAY_ADDRESS, RAY_LOOPBACK, run_on_ray
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.run.verify import LedgerView
from dp_fedmed.sweeps.ray_cluster import ray_cluster
from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "breast_cancer": ["federation.sample_rate=0.5", "federation.server_optimizer=fedadam"],
    "digits": ["data.partition.name=dirichlet", "training.local_steps=3"],
    "cells": ["data.num_records=40", "data.image_size=32", "model.args.channels=[4,8]"],
}


@pytest.fixture(scope="module")
def one_ray() -> Iterator[list[psutil.Process]]:
    """One Ray for all tests here, and the processes that it began with."""
    before = set(psutil.Process().children(recursive=True))
    with ray_cluster(2):
        yield [p for p in psutil.Process().children(recursive=True) if p not in before]


def listening(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses at which processes wait for whoever connects."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = process.net_connections("inet")
            found |= {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.slow
def test_ray_on_one_machine_is_heard_on_this_machine_alone(
    one_ray: list[psutil.Process], small: Callable[..., Config]
) -> None:
    class Looks(LogDisplay):
        seen: set[str] = set()  # noqa: RUF012

        def round(self, record: RoundRecord) -> None:
            keeper = one_ray[0]
            self.seen |= listening([keeper, *keeper.children(recursive=True), psutil.Process()])

    display = Looks()
    result = run_federation(small("engine=ray", "engine.workers=2", "privacy=none"), display)
    assert result.stopped == "completed"
    assert display.seen <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert display.seen, "something listens, or nothing was looked at"


@pytest.mark.parametrize(
    ("address", "here"), [(None, True), ("127.0.0.1:6379", True), ("10.0.0.7:6379", False)]
)
def test_a_ray_that_is_started_here_is_bound_to_loopback(
    address: str | None, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flwr.simulation
    from ray._private import ray_constants

    allowed = ray_constants.ENABLE_RAY_CLUSTER
    seen: list[tuple[bool, bool, dict[str, object]]] = []

    def look(*_: object, backend_config: dict[str, dict[str, object]], **__: object) -> None:
        loopback = all(os.environ.get(key) == value for key, value in RAY_LOOPBACK.items())
        seen.append((loopback, ray_constants.ENABLE_RAY_CLUSTER, backend_config["init_args"]))

    monkeypatch.setattr(flwr.simulation, "run_simulation", look)
    monkeypatch.delenv(RAY_ADDRESS, raising=False)
    run_on_ray(ServerApp(), ClientApp(), num_clients=1, num_cpus=1, address=address)
    ((loopback, clusters, init),) = seen
    assert (loopback, clusters) == (here, allowed and not here)
    assert init["include_dashboard"] is False
    assert init.get("_node_ip_address", "127.0.0.1") == "127.0.0.1"
    assert allowed == ray_constants.ENABLE_RAY_CLUSTER, "a cluster can be joined afterwards"


def test_a_run_on_a_cluster_is_resumed_on_this_machine(tmp_path: Path) -> None:
    run = f"run_dir={tmp_path}"
    stored = compose(["engine=ray", "engine.address=auto", "privacy=none", run])
    (tmp_path / "config.yaml").write_text(stored.to_yaml())
    assert compose([run, "resume=last", "engine=local"]).engine.address is None
    assert compose([run, "resume=last", "engine.workers=2"]).engine.address == "auto"
    with pytest.raises(ConfigError, match=r"engine\.address=auto is a Ray cluster's"):
        compose([run, "resume=last", "engine=local", "engine.address=auto"])


def final_model(config: Config) -> dict[str, np.ndarray]:
    result = run_federation(config)
    assert result.stopped == "completed"
    return RunDirectory(result.run_dir).load_model()


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )


@pytest.mark.parametrize("task", list(SETTINGS))
def test_one_worker_and_several_give_the_same_model(
    task: str, small: Callable[..., Config]
) -> None:
    settings = [f"task={task}", *SETTINGS[task]]
    one = final_model(small(*settings, "engine.workers=1"))
    assert same(one, final_model(small(*settings, "engine.workers=2")))
    assert same(one, final_model(small(*settings, "engine.workers=3")))
    assert not same(one, final_model(small(*settings, "seed=1")))


@pytest.mark.slow
def test_clients_with_several_threads_work_on_a_pool_and_never_hang(
    small: Callable[..., Config], tmp_path: Path
) -> None:
    settings = ["task=digits", "privacy=none", "training.threads=2", "federation.num_clients=2"]
    more = ["federation.num_rounds=2", "engine.workers=2", f"run_dir={tmp_path}/pool"]
    command = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", "run"]
    subprocess.run([*command, *settings, *more], check=True, timeout=200, capture_output=True)
    one = final_model(small(*settings, "engine.workers=1"))
    assert same(one, RunDirectory(tmp_path / "pool").load_model())
    torch.set_num_threads(2)
    torch.ones(2_000_000).sum()  # from here on, threads in a forked process would hang
    with pytest.raises(ConfigError, match=r"training\.threads=2 cannot be used by worker"):
        run_federation(small(*settings, "engine.workers=2"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_a_lost_ray_worker_ends_the_run_and_it_goes_on_elsewhere(
    small: Callable[..., Config],
) -> None:
    def kill_an_actor(record: RoundRecord) -> None:
        actors = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "ClientAppActor" in " ".join(process.info["cmdline"] or [])
        ]
        if record.server_round == 1 and actors:
            actors[0].kill()

    class Killer(LogDisplay):
        def round(self, record: RoundRecord) -> None:
            kill_an_actor(record)

    settings = (
        *("federation.num_rounds=30", "federation.client_evaluate_every=0", "privacy=user"),
        *("federation.sampler=all", "federation.sample_rate=1"),
    )
    config = small("engine=ray", "engine.workers=2", *settings)
    result = run_federation(config, Killer())
    assert "lost" in result.stopped
    assert 1 <= result.rounds < 30
    assert RunDirectory(result.run_dir).load_model()
    again = run_federation(compose([f"run_dir={result.run_dir}", "resume=last", "engine=local"]))
    assert (again.stopped, again.rounds) == ("completed", 30)
    assert not list(LedgerView(result.run_dir).problems())
    whole = run_federation(small("engine.workers=1", *settings))
    reports = [
        json.loads((path / "privacy_report.json").read_text())["guarantees"]
        for path in (result.run_dir, whole.run_dir)
    ]
    assert reports[0] == reports[1], "the round that was lost is not paid for twice"


HYBRID = ("privacy=hybrid", "privacy.sample.grad_mode=hooks", "privacy.noise_seed=7")


def guarantees(folder: Path) -> list[dict[str, object]]:
    return list(json.loads((folder / "privacy_report.json").read_text())["guarantees"])


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("style", ["sample", "none"])
def test_masks_on_ray_cancel_to_the_same_bits(style: str, small: Callable[..., Config]) -> None:
    shares = ["privacy.noise=shares", "privacy.noise_seed=7", "privacy.sample.grad_mode=hooks"]
    one_step = ["training.local_steps=1", "training.batch_size=100000"]
    own = [*shares, *one_step] if style == "sample" else ["federation.secure_aggregation=true"]
    settings = ["task=breast_cancer", f"privacy={style}", *own, "federation.num_clients=4"]
    here = final_model(small(*settings))
    assert same(here, final_model(small(*settings, "engine=ray", "engine.workers=2")))


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_ray_gives_the_same_model_as_local(small: Callable[..., Config]) -> None:
    settings = ["task=digits", *SETTINGS["digits"]]
    local = final_model(small(*settings))
    assert same(local, final_model(small(*settings, "engine=ray", "engine.workers=2")))


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_hybrid_on_ray_is_the_same_and_costs_the_same_as_on_local(
    small: Callable[..., Config],
) -> None:
    here, there = (
        run_federation(small(*HYBRID, *engine)).run_dir
        for engine in ((), ("engine=ray", "engine.workers=2"))
    )
    assert same(RunDirectory(here).load_model(), RunDirectory(there).load_model())
    assert guarantees(here) == guarantees(there)


@pytest.fixture(scope="module")
def flower(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """`flwr run` with one SuperLink for all, which is stopped afterwards."""
    home = tmp_path_factory.mktemp("flower") / "flower_home"
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)
    environment.pop(RAY_ADDRESS, None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "flwr"), "run", str(ROOT), "--stream", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=home.parent,
            timeout=240,
        )

    yield run
    for process in psutil.process_iter(["cmdline"]):
        if str(home) in " ".join(process.info["cmdline"] or []):
            process.kill()


@pytest.mark.slow
def test_flwr_run_gives_the_same_model_as_local(
    flower: Callable[..., subprocess.CompletedProcess[str]],
    small: Callable[..., Config],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "flower run"
    done = flower(
        "--federation-config",
        "num-supernodes=3",
        "--run-config",
        f"task='digits' privacy='none' overrides='federation.num_rounds=2' run-dir='{folder}'",
    )
    deadline = time.monotonic() + 60
    while not (folder / "privacy_report.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert (folder / "privacy_report.json").exists(), done.stdout + done.stderr
    assert "round 2 · 3/3 clients" in done.stdout
    local = final_model(small("task=digits", "federation.num_clients=3"))
    assert same(local, RunDirectory(folder).load_model())


@pytest.mark.slow
def test_hybrid_under_flwr_run_is_the_same_and_costs_the_same_as_on_local(
    flower: Callable[..., subprocess.CompletedProcess[str]],
    small: Callable[..., Config],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "flower run"
    overrides = " ".join([*HYBRID[1:], "federation.num_rounds=2"])
    done = flower(
        *("--federation-config", "num-supernodes=3", "--run-config"),
        f"privacy='hybrid' overrides='{overrides}' run-dir='{folder}'",
    )
    local = run_federation(small(*HYBRID, "federation.num_clients=3"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder / "model.safetensors").exists():
        time.sleep(0.5)
    assert (folder / "model.safetensors").exists(), done.stdout + done.stderr
    assert "round 2 · " in done.stdout
    assert same(RunDirectory(local.run_dir).load_model(), RunDirectory(folder).load_model())
    assert guarantees(local.run_dir) == guarantees(folder)


class StopAfterTwo(LogDisplay):
    """Presses Ctrl-C after round 2."""

    def round(self, record: RoundRecord) -> None:
        if record.server_round == 2:
            raise KeyboardInterrupt


def interrupted(config: Config, copies: list[Path]) -> None:
    """A run that was stopped after two rounds, and copies of it."""
    result = run_federation(config, StopAfterTwo())
    assert result.stopped == "interrupted after round 2"
    for path in copies:
        shutil.copytree(result.run_dir, path, symlinks=True)


def finished(path: Path) -> dict[str, np.ndarray]:
    assert not list(LedgerView(path).problems())
    return RunDirectory(path).load_model()


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_a_run_that_began_on_local_goes_on_the_same_on_ray_and_under_flwr_run(
    flower: Callable[..., subprocess.CompletedProcess[str]],
    small: Callable[..., Config],
    tmp_path: Path,
) -> None:
    places = {name: tmp_path / name for name in ("local", "ray", "flower")}
    settings = ["privacy=hybrid", "federation.num_clients=3", "federation.num_rounds=4"]
    interrupted(small(*settings, "privacy.sample.grad_mode=hooks"), copies=list(places.values()))
    run_federation(compose([f"run_dir={places['local']}", "resume=last"]))
    words = [f"run_dir={places['ray']}", "resume=last", "engine=ray", "engine.workers=2"]
    run_federation(compose(words))
    done = flower(
        *("--federation-config", "num-supernodes=3"),
        *("--run-config", f"resume='{places['flower']}'"),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if LedgerView(places["flower"]).history.closed is not None:
            break
        time.sleep(0.5)
    time.sleep(0.5)
    local = finished(places["local"])
    assert same(local, finished(places["ray"]))
    assert LedgerView(places["flower"]).history.closed == "completed", done.stdout + done.stderr
    assert same(local, finished(places["flower"]))
    spent = [LedgerView(path).epsilons() for path in places.values()]
    assert spent[0] == spent[1] == spent[2]


@pytest.mark.slow
def test_an_anomaly_run_that_began_on_local_ends_the_same_under_flwr_run(
    flower: Callable[..., subprocess.CompletedProcess[str]],
    tiny: Callable[..., Config],
    tmp_path: Path,
) -> None:
    class StopAfterOne(LogDisplay):
        def round(self, record: RoundRecord) -> None:
            if record.server_round == 1:
                raise KeyboardInterrupt

    begun = run_federation(tiny("privacy=sample"), StopAfterOne())
    assert begun.stopped == "interrupted after round 1"
    here, there = tmp_path / "here", tmp_path / "there"
    for path in (here, there):
        shutil.copytree(begun.run_dir, path, symlinks=True)
    run_federation(compose([f"run_dir={here}", "resume=last"]))
    done = flower(*("--federation-config", "num-supernodes=4", "--run-config", f"resume='{there}'"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and LedgerView(there).history.closed is None:
        time.sleep(0.5)
    time.sleep(0.5)
    assert LedgerView(there).history.closed == "completed", done.stdout + done.stderr
    assert same(finished(here), finished(there))
    assert LedgerView(here).epsilons() == LedgerView(there).epsilons()


def test_the_bundle_carries_code_and_conf_but_no_run(tmp_path: Path) -> None:
    import zipfile

    app = tmp_path / "dp-fedmed"  # `flwr build` refuses a clone in a folder like dp_fedmed
    copy_checkout(app)
    run = app / "checkpoints" / "a_run"
    (run / "private").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}\n")
    (run / "private" / "ledger.jsonl").write_text("{}\n")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(app)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    bundle = next(tmp_path.glob("*.fab"))
    names = zipfile.ZipFile(bundle).namelist()
    assert "conf/config.yaml" in names
    assert "dp_fedmed/server_app.py" in names
    assert "dp_fedmed/reporting/templates/card.md" in names, "a run writes its privacy card"
    assert not [n for n in names if "a_run" in n or "private/" in n]
