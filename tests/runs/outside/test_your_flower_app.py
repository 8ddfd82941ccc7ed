"""`examples/your_flower_app`: somebody else's Flower app with our strategy, sampler and ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import BudgetSpent, ConfigError, LedgerError, RunLocked
from dp_fedmed.run.ledger import RunLedger

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "your_flower_app"
Run = Callable[..., None]


@pytest.fixture
def run_app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Run the example's two apps on a grid of this process."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from your_app import client_app, server_app

    def run(**settings: object) -> None:
        chosen = {"rounds": 3, "clients": 12, "epsilon": 20.0, "folder": str(tmp_path / "run")}
        grid = LocalGrid(client_app.app, num_clients=12, workers=1)
        context = Context(1, 0, {}, RecordDict(), chosen | settings)
        try:
            server_app.app(grid, context)
        finally:
            grid.close()

    yield run
    for name in [name for name in sys.modules if name.startswith("your_app")]:
        del sys.modules[name]


def test_it_learns_with_a_guarantee_in_under_25_lines(
    run_app: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_app()
    said = capsys.readouterr().out
    assert "ε = " in said
    accuracy = float(said.split("accuracy ")[1][:5])
    assert accuracy > 0.25, said  # of ten classes; the noise is secret, and spreads it widely
    lines = (tmp_path / "run" / "private" / "ledger.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["OPEN", *["CHARGE", "RELEASE"] * 3]
    code = (EXAMPLE / "your_app" / "server_app.py").read_text()
    made_private = code.split("    sampler = ")[1].split("        result = ")[0]
    assert len(made_private.splitlines()) < 25


def test_started_again_it_pays_for_no_round_twice_and_ends_in_the_same_model(
    run_app: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_app()
    first = capsys.readouterr().out
    ledger = tmp_path / "run" / "private" / "ledger.jsonl"
    before = ledger.read_text()
    run_app()
    assert capsys.readouterr().out == first
    assert ledger.read_text() == before


def test_a_target_that_holds_no_round_and_a_broken_folder_are_refused(
    run_app: Run, tmp_path: Path
) -> None:
    run_app(rounds=2)
    with pytest.raises(BudgetSpent, match="would take"):
        run_app(rounds=3, epsilon=20.0)  # two rounds have spent what three may
    (tmp_path / "run" / "private" / "secret" / "ledger.key").unlink()
    with pytest.raises(LedgerError, match="restore it"):
        run_app(rounds=2)


def test_two_processes_cannot_share_a_ledger(run_app: Run, tmp_path: Path) -> None:
    import dp_fedmed as dp

    event = dp.PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    mechanism = dp.ClientUpdates(event, max_norm=1.0, expected_cohort=4.0)
    with (
        RunLedger(tmp_path / "one", mechanism, rounds=2, delta=1e-5),
        pytest.raises(RunLocked),
    ):
        RunLedger(tmp_path / "one", mechanism, rounds=2, delta=1e-5)
    with pytest.raises(ConfigError, match="does not hold a single round"):
        RunLedger(tmp_path / "two", mechanism, rounds=2, delta=1e-5, target_epsilon=0.1)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_sampler_that_the_mechanism_was_not_made_for_is_refused_before_a_charge(
    run_app: Run, tmp_path: Path, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the ledger would count with a sampling that never happened."""
    from your_app import server_app

    real = server_app.dp.DPStrategy

    def other(settings: object, *, sampler: object, **more: object) -> object:
        return real(settings, sampler=server_app.dp.PoissonSampler(rate=rate), **more)

    monkeypatch.setattr(server_app.dp, "DPStrategy", other, raising=False)
    with pytest.raises(ConfigError, match="the ledger charges"):
        run_app()
    ledger = (tmp_path / "run" / "private" / "ledger.jsonl").read_text()
    assert "CHARGE" not in ledger


def test_the_losses_of_a_secret_cohort_are_not_in_the_result(
    run_app: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.federation.strategy import DPStrategy

    results, real = [], DPStrategy.start

    def start(strategy: DPStrategy, *rest: object, **more: object) -> object:
        results.append(real(strategy, *rest, **more))
        return results[-1]

    monkeypatch.setattr(DPStrategy, "start", start)
    run_app()
    assert results[0].train_metrics_clientapp == {}


@pytest.mark.slow
def test_it_runs_on_flowers_own_simulation(tmp_path: Path) -> None:
    script = tmp_path / "simulate.py"
    script.write_text(
        "import your_app.server_app as s\n"
        "from flwr.simulation import run_simulation\n"
        "from your_app.client_app import app\n"
        "real = s.app._main\n"
        "def main(grid, context):\n"
        "    context.run_config.update(rounds=2, clients=12, epsilon=20.0,"
        f" folder={str(tmp_path / 'run')!r})\n"
        "    real(grid, context)\n"
        "s.app._main = main\n"
        "run_simulation(s.app, app, num_supernodes=12,\n"
        "               backend_config={'client_resources': {'num_cpus': 1},"
        " 'init_args': {'num_cpus': 2}})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": f"{EXAMPLE}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "ε = " in done.stdout, done.stdout + done.stderr
