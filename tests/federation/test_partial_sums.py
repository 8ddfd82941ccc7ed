"""Workers add up: the same sum as the server's own, whoever fails, dies, lies or is late."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.messages import RecordOrder
from dp_fedmed.federation.nodes import wait_for_nodes
from dp_fedmed.federation.partial_sums import Adder, Asked, Facts, RoundSum, sum_at_workers
from dp_fedmed.federation.plan import PrivacyPlan
from dp_fedmed.federation.privacy_guard import Expected, PrivacyGuard
from dp_fedmed.federation.replies import ReplyReader
from dp_fedmed.federation.rounds import RoundRecord, RoundSettings
from dp_fedmed.federation.run_account import Limits
from dp_fedmed.federation.sampling import AllSampler
from dp_fedmed.federation.strategy import DPStrategy
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import Arrays, State
from dp_fedmed.privacy.mechanisms.client_updates import BELOW, ClientUpdates
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams
from tests.federation.observed import Kept, Paid
from tests.runs import apps

CLIENTS, BAD = 7, 3
MODEL = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(7, np.float32)}
EVENT = PrivacyEvent.full(unit="client", noise_multiplier=1.0)


class Watched(ClientUpdates):
    """Keeps the exact sums, and lowers C after each round, as adaptive clipping might."""

    def __init__(self) -> None:
        super().__init__(EVENT, max_norm=1.0, expected_cohort=CLIENTS)
        self.totals: list[dict[str, bytes]] = []

    def release(self, total: State, streams: RoundStreams, /) -> State:
        self.totals.append({name: value.tobytes() for name, value in total.items()})
        average = super().release(total, streams)
        self.max_norm *= 0.7
        return average


class Floats(Watched):
    """Adds up in floating point, where the order matters."""

    def empty(self, like: Arrays) -> State:
        return {name: value * 1.0 for name, value in super().empty(like).items()}

    def release(self, total: State, streams: RoundStreams, /) -> State:
        return {name: value for name, value in total.items() if name != BELOW}


def honest(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    rng = np.random.default_rng(number)
    update = {n: rng.normal(0, 0.02 * (number + 1), v.shape) for n, v in model.items()}
    return apps.good({n: v.astype(np.float32) for n, v in update.items()}, 5 + number, 0.1 * number)


def changed(change: Callable[[RecordDict], None]) -> apps.Answer:
    def answer(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        content = honest(number, model)
        if number == BAD:
            change(content)
        return content

    return answer


def arrays(change: Callable[[np.ndarray], np.ndarray]) -> apps.Answer:
    def spoil(content: RecordDict) -> None:
        state = model_arrays.from_record(content.array_records["arrays"])
        content["arrays"] = model_arrays.to_record({n: change(v) for n, v in state.items()})

    return changed(spoil)


def metric(key: str, value: float) -> apps.Answer:
    return changed(lambda content: content.metric_records["metrics"].update({key: value}))


def raises(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == BAD:
        raise FileNotFoundError("/home/jane/patients.csv")
    return honest(number, model)


def dies(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == BAD and os.getpid() != SERVER:
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(number, model)


def hangs(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == BAD:
        time.sleep(60)
    return honest(number, model)


def absent(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == BAD:
        raise ValueError("contributes nothing")
    return honest(number, model)


SERVER = os.getpid()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not [c for c in psutil.Process().children() if c.status() != "zombie"]


class Ran:
    """What a strategy did on a grid: exact sums and what is known of each round."""

    def __init__(
        self,
        answer: apps.Answer | ClientApp,
        workers: int,
        *,
        mechanism: Watched | None = None,
        rounds: int = 1,
        timeout: float | None = None,
        during: Callable[[LocalGrid], None] = lambda grid: None,
        **settings: Any,
    ) -> None:
        app = answer if isinstance(answer, ClientApp) else apps.app_of(answer)
        own = timeout is not None
        grid = LocalGrid(app, num_clients=CLIENTS, workers=workers, own_process=own)
        self.mechanism, self.records = mechanism or Watched(), list[RoundRecord]()
        self.summed = 0

        def end(record: RoundRecord) -> None:
            if record.server_round:
                self.records.append(record)
                during(grid)

        plan = PrivacyPlan(delta_sample=None, delta_user=1e-5, clients={}, user_event=EVENT)
        key = NoiseKey.from_public_seed(1)
        ledger = Paid(
            PrivacyGuard(Limits(rounds=rounds), plan),
            lambda number, model: RoundStreams(key, "run", number, bytes(32)),
        )
        strategy = DPStrategy(
            RoundSettings(num_rounds=rounds, evaluate_every=0),
            nodes={n: v.node_id for n, v in wait_for_nodes(grid, expected=None, timeout=1).items()},
            sampler=AllSampler(rate=1.0),
            mechanism=self.mechanism,
            ledger=ledger,
            observer=Kept(end),
            **settings,
        )
        original = grid.send_and_sum

        def counted(*args: Any, **named: Any) -> None:
            self.summed += 1
            original(*args, **named)

        grid.send_and_sum = counted  # type: ignore[method-assign]
        try:
            strategy.start(grid, model_arrays.to_record(MODEL), timeout=timeout)
        finally:
            grid.close()
        self.model = model_arrays.from_record(strategy.arrays)

    def same(self, other: Ran) -> bool:
        models = [{n: v.tobytes() for n, v in each.model.items()} for each in (self, other)]
        return self.mechanism.totals == other.mechanism.totals and models[0] == models[1]

    @property
    def losses(self) -> list[float | None]:
        return [record.train_loss for record in self.records]

    @property
    def failed(self) -> list[dict[str, str]]:
        return [record.failed for record in self.records]


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_add_up_to_the_same_bytes_with_the_c_of_each_round(workers: int) -> None:
    here, there = Ran(honest, 1, rounds=3), Ran(honest, workers, rounds=3)
    assert (here.summed, there.summed) == (0, 3)
    assert here.same(there)
    assert here.losses == there.losses
    assert len({total["w"] for total in there.mechanism.totals}) == 3, "C was another in each round"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (raises, "FileNotFoundError in the client (details are in its own log)"),
        (arrays(lambda a: np.full_like(a, np.nan)), "array 'w' holds NaN or infinity"),
        (arrays(lambda a: a.astype(np.float64)), "has 9728 bytes, expected at most 8896"),
        (arrays(lambda a: a.reshape(1, *a.shape)), "array 'w' is float32[1, 40, 30], expected"),
        (changed(lambda c: c.pop("arrays")), "its reply has no 'arrays'"),
        (changed(lambda c: c.clear()), "its reply has no 'metrics'"),
        (changed(lambda c: c.array_records["arrays"].pop("b")), "array 'b' is missing"),
        (metric("num-examples", 0.5), "num-examples=0.5 is not a count of records"),
        (metric("train_loss", float("nan")), "metric 'train_loss' is not a finite number"),
    ],
)
def test_who_fails_adds_nothing_and_changes_nothing_else(answer: apps.Answer, said: str) -> None:
    here, there, without = Ran(answer, 1), Ran(answer, 2), Ran(absent, 1)
    assert here.failed == there.failed
    assert list(there.failed[0]) == [f"client-{BAD:05d}"]
    assert said in there.failed[0][f"client-{BAD:05d}"]
    assert there.same(here)
    assert there.same(without)
    assert here.losses == there.losses == without.losses


@pytest.mark.parametrize("size", [1e30, float(np.finfo(np.float32).max)])
def test_a_huge_answer_is_clipped_by_a_worker_as_by_the_server(size: float) -> None:
    huge = arrays(lambda a: np.full_like(a, size))
    assert Ran(huge, 1).same(Ran(huge, 2))
    assert not Ran(huge, 2).same(Ran(absent, 2))


@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_that_dies_takes_one_client_with_it_and_nothing_that_was_added(
    workers: int,
) -> None:
    there = Ran(dies, workers, rounds=2)
    died = {f"client-{BAD:05d}": "its worker process died (exit code -9)"}
    assert there.failed == [died, died]
    assert there.same(Ran(absent, 1, rounds=2))


def test_workers_killed_between_rounds_cost_nothing() -> None:
    def kill(grid: LocalGrid) -> None:
        for child in psutil.Process().children():
            os.kill(child.pid, signal.SIGKILL)
            child.wait()

    there = Ran(honest, 2, rounds=3, during=kill)
    assert there.failed == [{}, {}, {}]
    assert there.same(Ran(honest, 1, rounds=3))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_added_before_a_time_out_counts(workers: int) -> None:
    begun = time.monotonic()
    there = Ran(hangs, workers, timeout=2.0)
    assert time.monotonic() - begun < 20
    late = set(there.failed[0])
    assert f"client-{BAD:05d}" in late
    assert set(there.failed[0].values()) == {"timed out"}
    others = {f"client-{n:05d}" for n in range(CLIENTS)} - late
    assert {f"client-{n:05d}" for n in range(BAD)} <= others, "those before it were done"

    def same_are_absent(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        if f"client-{number:05d}" in late:
            raise ValueError("contributes nothing")
        return honest(number, model)

    assert there.same(Ran(same_are_absent, 1))


def test_a_clients_state_lasts_where_its_answer_is_added_up() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen = int(context.state.config_records.get("seen", ConfigRecord({"n": 0}))["n"]) + 1
        context.state["seen"] = ConfigRecord({"n": seen})
        model = model_arrays.from_record(message.content.array_records["arrays"])
        update = {name: np.full_like(value, 1e-3) for name, value in model.items()}
        return Message(apps.good(update, loss=float(seen)), reply_to=message)

    assert Ran(app, 2, rounds=3).losses == [1.0, 2.0, 3.0]


def test_who_failed_is_not_shown_where_cohorts_are_hidden(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("DEBUG"):
        assert Ran(dies, 2).failed[0]
        assert Ran(raises, 2).failed[0]
    shown = caplog.text + "".join(capfd.readouterr())
    assert f"client-{BAD:05d}" not in shown
    assert "died" not in shown


def test_what_cannot_be_added_up_elsewhere_is_added_up_here() -> None:
    class Local(Watched):
        """Has no name by which a worker could know it."""

    local = Ran(honest, 2, mechanism=Local())
    assert local.summed == 0
    assert local.same(Ran(honest, 1))
    floats = Ran(honest, 2, mechanism=Floats())
    assert floats.summed == 0, "only integers do not depend on the order"
    assert Ran(honest, 2, answers="weights").summed == 0, "an answer is not yet what is added"


def test_a_mechanism_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ClientUpdates, update: Arrays, /, client: str = "") -> State:
        raise ZeroDivisionError("in the mechanism")

    monkeypatch.setattr(ClientUpdates, "bound", broken)
    with pytest.raises(RuntimeError, match=r"could not add up .*ZeroDivisionError: in the mech"):
        Ran(honest, 2)


def test_a_grid_that_watches_replies_gets_each_of_them() -> None:
    class Watching(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            return super().send_and_receive(messages, timeout=timeout)

    app = apps.app_of(honest)
    made = [kind(app, num_clients=2, workers=w) for kind in (LocalGrid, Watching) for w in (1, 2)]
    assert [grid.adds_up for grid in made] == [False, True, False, False]


ORDER = RecordOrder(noise_multiplier=2.0, sample_rate=0.5, steps=3, grad_mode="hooks")
REPORT = {"noise_multiplier": 2.0, "sample_rate": 0.5, "steps": 3, "charges": 2}


def reply(report: dict[str, Any] | None, examples: float = 9.0, size: float = 1e-3) -> RecordDict:
    content = apps.good({n: np.full_like(v, size) for n, v in MODEL.items()}, examples)
    if report is not None:
        content["privacy"] = ConfigRecord(report)
    return content


def adder() -> Adder:
    mechanism = ClientUpdates(EVENT, max_norm=1.0, expected_cohort=2.0)
    made = Adder(mechanism, MODEL, mechanism.empty(MODEL))
    sent: Adder = pickle.loads(pickle.dumps(made))
    return sent


def test_what_travels_to_a_worker_is_small() -> None:
    assert len(pickle.dumps(adder())) < MODEL["w"].nbytes


def test_a_worker_checks_what_a_client_did_for_its_records() -> None:
    asked = Asked("a", Expected(9, ORDER))
    facts, term = adder().term(asked, reply(REPORT))
    assert facts == Facts(examples=9, loss=0.5, charges=2)
    assert term is not None
    assert int(term[-1][0]) == 1, "below C"
    for content, said in [
        (reply(REPORT, examples=8.0), "num-examples=8, its plan is for 9"),
        (reply(None), "it did not report"),
        (reply({**REPORT, "noise_multiplier": 1.0}), "noise_multiplier=1.0, told 2.0"),
        (reply({**REPORT, "steps": 1}), "steps=1, told 3"),
        (reply({**REPORT, "charges": 0}), "charges=0"),
        (reply({**REPORT, "charges": 17}), "answered 17 times"),
    ]:
        facts, term = adder().term(asked, content)
        assert term is None
        assert said in (facts.refused or "")
        assert facts.charges is None
    facts, term = adder().term(asked, reply(REPORT, size=np.inf))
    assert (term, facts.charges) == (None, 2), "what it has paid is paid, whatever it sent"


class Payments:
    """A guard that notes who pays."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []

    def pay_client(self, name: str, charges: int) -> None:
        self.paid.append((name, charges))


def test_clients_pay_here_in_name_order_and_who_is_missing_is_late() -> None:
    guard = Payments()
    reader = ReplyReader(
        {1: "a", 2: "b", 3: "c"},
        guard=guard,  # type: ignore[arg-type]
        hides_cohorts=True,
        max_norm=None,
    )
    mechanism = ClientUpdates(EVENT, max_norm=1.0, expected_cohort=2.0)
    total = RoundSum(mechanism, MODEL, reader)
    assert list(total) == []
    total.note(2, Facts(examples=1, loss=3.0, charges=2))
    total.note(1, Facts(charges=1, refused="NaN"))
    part = np.arange(total.size, dtype=np.int64)
    total.add(part)
    total.add(part)
    record = RoundRecord(server_round=1, cohort=["a", "b", "c"])
    found, contributed = total.close(record)
    assert guard.paid == [("a", 1), ("b", 2)]
    assert record.failed == {"a": "NaN", "c": "no reply in time"}
    assert (contributed, record.train_loss) == (1, 3.0)
    laid = np.concatenate([value.ravel() for value in found.values()])
    assert laid.tolist() == (2 * part).tolist()
    assert list(found)[-1] == BELOW


def test_an_empty_cohort_asks_nobody() -> None:
    grid = LocalGrid(apps.app_of(honest), num_clients=2, workers=2)
    mechanism = ClientUpdates(EVENT, max_norm=1.0, expected_cohort=2.0)
    reader = ReplyReader({}, guard=None, hides_cohorts=True, max_norm=None)
    assert sum_at_workers(grid, [], mechanism, MODEL, reader, None) is None
