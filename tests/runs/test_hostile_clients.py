"""A client that sends whatever it likes, through the real strategy, server run and ledger.

Each attack is refused or bounded, said once, and never makes the reported ε smaller.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from dp_fedmed.assemble import client_runtime, serve
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, compose
from dp_fedmed.engines.local_grid import FIRST_NODE_ID, LocalGrid
from dp_fedmed.errors import NodeError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.nodes import wait_for_nodes
from dp_fedmed.federation.private_log import cohort_logger
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.run.results import RunResult
from dp_fedmed.run.verify import LedgerView

CLIENTS, C = 4, 0.5
HOSTILE = CLIENTS - 1
NAME = f"client-{HOSTILE:05d}"
STYLES = ("none", "sample", "user", "hybrid")
NETWORK = (
    *("privacy.sample.grad_mode=hooks", "model._target_=dp_fedmed.models.MLP"),
    *("model.args.hidden=[4]", "training.local_steps=1", "data.partition.min_records=1"),
)
ANOMALY = (
    *("task=textures", "data.num_records=40", "data.image_size=16", "anomaly.backbone=tiny"),
    *("anomaly.grid=4", "anomaly.dimension=4", "anomaly.coreset_size=8"),
    "data.partition.min_records=1",
)

Reply = Callable[[Message, Message, list[Message]], list[Message]]


class HostileGrid(LocalGrid):
    """The local engine, some of whose clients answer one kind of message by their attack."""

    attacks: dict[int, Reply] = {}  # noqa: RUF012  # by partition
    verb = "train"

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        sent = list(messages)
        replies = super().send_and_receive(sent, timeout=timeout)
        return self._spoiled({m.metadata.message_id: m for m in sent}, replies)

    def _spoiled(self, sent: dict[str, Message], replies: Iterable[Message]) -> Iterator[Message]:
        earlier: dict[int, list[Message]] = self.__dict__.setdefault("earlier", {})
        for reply in replies:
            message = sent[reply.metadata.reply_to_message_id]
            number = reply.metadata.src_node_id - FIRST_NODE_ID
            attack = self.attacks.get(number)
            if attack is None or message.metadata.message_type != self.verb:
                yield reply
                continue
            before = earlier.setdefault(number, [])
            yield from attack(message, reply, before)
            before.append(reply)


def _zeros(self: NoiseStream, shape: Any, *, std: float, dtype: Any = np.float64) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoiseStream, "normal", _zeros)


def settings(
    style: str, path: Path, *words: str, rounds: int = 2, clients: int = CLIENTS
) -> Config:
    everyone = ("federation.sampler=all", "federation.sample_rate=1")
    bound = (f"privacy.user.max_grad_norm={C}",) if style in ("user", "hybrid") else ()
    return compose(
        [
            *(f"privacy={style}", "engine.workers=1", f"federation.num_clients={clients}"),
            *(f"federation.num_rounds={rounds}", f"run_dir={path}", *everyone, *bound, *words),
        ]
    )


def federate(config: Config, attacks: dict[int, Reply], verb: str = "train") -> RunResult:
    runtime = client_runtime(config)
    clients = config.federation.num_clients
    grid = HostileGrid(build_client_app(runtime=runtime), num_clients=clients, workers=1)
    grid.attacks, grid.verb = attacks, verb
    runtime.preload(clients)
    return serve(grid, config, LogDisplay())


def absent(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
    return []


def with_content(change: Callable[[RecordDict], None]) -> Reply:
    """The reply that an honest client would give, changed."""

    def attack(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
        records = {key: value.copy() for key, value in reply.content.items()}
        content = RecordDict(records)
        change(content)
        return [Message(content, reply_to=message)]

    return attack


def arrays(change: Callable[[np.ndarray], np.ndarray]) -> Reply:
    def spoil(content: RecordDict) -> None:
        state = model_arrays.from_record(content.array_records["arrays"])
        content["arrays"] = model_arrays.to_record({n: change(v) for n, v in state.items()})

    return with_content(spoil)


def first_array(data: Callable[[bytes], bytes]) -> Reply:
    def spoil(content: RecordDict) -> None:
        record = content.array_records["arrays"]
        name, array = next(iter(record.items()))
        record[name] = Array(array.dtype, array.shape, array.stype, data(array.data))

    return with_content(spoil)


def metric(key: str, value: Any) -> Reply:
    return with_content(lambda content: content.metric_records["metrics"].update({key: value}))


def privacy(**forged: Any) -> Reply:
    return with_content(lambda content: content.config_records["privacy"].update(forged))


def filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def renamed(content: RecordDict) -> None:
    record = content.array_records["arrays"]
    name = next(iter(record))
    content["arrays"] = ArrayRecord({f"{name}\nERROR forged": a for n, a in record.items()})


def added(content: RecordDict) -> None:
    record = content.array_records["arrays"]
    record["more"] = next(iter(record.values()))


def emptied(content: RecordDict) -> None:
    content.clear()


def from_node(message: Message, node: int) -> Message:
    message.metadata.__dict__["_src_node_id"] = node
    return message


def replayed(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
    return [earlier[-1]] if earlier else []


def as_another(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
    return [from_node(Message(reply.content, reply_to=message), FIRST_NODE_ID)]


def twice(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
    evil = arrays(filled(9.0))(message, reply, earlier)
    return [reply, *evil * 50]


SECRET = "/home/jane/patients.csv"


def error(text: str) -> Reply:
    return lambda message, reply, earlier: [Message(Error(2, text), reply_to=message)]


@dataclass(frozen=True)
class Attack:
    reply: Reply
    said: str  # by the one warning about it


REFUSED = {
    "NaN": Attack(arrays(filled(np.nan)), "NaN or infinity"),
    "infinity": Attack(arrays(filled(-np.inf)), "NaN or infinity"),
    "other floats": Attack(
        arrays(lambda a: a.astype(np.float32 if a.dtype == np.float64 else np.float64)), "expected"
    ),
    "integers": Attack(arrays(lambda a: np.ones(a.shape, np.int64)), "expected"),
    "strings": Attack(arrays(lambda a: np.full(a.shape, "x")), "cannot be read"),
    "pickled objects": Attack(
        first_array(lambda d: d.replace(b"'<f4'", b"'|O' ").replace(b"'<f8'", b"'|O' ")),
        "cannot be read",
    ),
    "another shape": Attack(arrays(lambda a: a.reshape(1, *a.shape)), "expected"),
    "an array more": Attack(with_content(added), "'more' is not in the model"),
    "an array less": Attack(
        with_content(lambda c: c.array_records["arrays"].popitem()), "is missing"
    ),
    "forged lines in names": Attack(with_content(renamed), "array"),
    "nothing": Attack(with_content(emptied), "has no 'metrics'"),
    "a config for metrics": Attack(
        with_content(lambda c: c.update({"metrics": ConfigRecord({"num-examples": 1})})),
        "has no 'metrics'",
    ),
    "no arrays": Attack(with_content(lambda c: c.pop("arrays")), "has no 'arrays'"),
    "32 MB": Attack(first_array(lambda d: d + bytes(2**25)), "bytes, expected at most"),
    "cut off": Attack(first_array(lambda d: d[:-3]), "cannot be read"),
    "a header of 64 kB": Attack(first_array(lambda d: d[:8] + b"\xff\xff"), "cannot be read"),
    "1e30 examples": Attack(metric("num-examples", 1e30), "'num-examples'"),
    "1e10 examples": Attack(metric("num-examples", 1e10), "num-examples=1e+10"),
    "a negative count": Attack(metric("num-examples", -3), "num-examples=-3"),
    "half an example": Attack(metric("num-examples", 0.5), "num-examples=0.5"),
    "NaN examples": Attack(metric("num-examples", float("nan")), "'num-examples'"),
    "a count of 400 digits": Attack(metric("num-examples", 10**400), "'num-examples'"),
    "a loss of 1e300": Attack(metric("train_loss", 1e300), "'train_loss'"),
    "a list": Attack(metric("train_loss", [1.0]), "'train_loss'"),
    "a forged name": Attack(metric("loss\nERROR forged", 1.0), "whose name is not one"),
    "a thousand metrics": Attack(
        with_content(
            lambda c: c.metric_records["metrics"].update({f"m{i}": 1.0 for i in range(1000)})
        ),
        "metrics, more than 100",
    ),
    "an old reply": Attack(replayed, "no reply in time"),
    "another's id": Attack(as_another, "no reply in time"),
    "an error with a path": Attack(error(f"cannot open {SECRET}"), "cannot open <path>"),
    "an error of 1 MB": Attack(error("x" * 2**20), "xxx…"),
    "an error with forged lines": Attack(error("a\nERROR forged\x1b[2J\u202e"), "a ERROR forged"),
}
RECORD_LEVEL = {
    "less noise": Attack(privacy(noise_multiplier=1e-3), "noise_multiplier=0.001, told"),
    "another rate": Attack(privacy(sample_rate=1e-9), "sample_rate=1e-09, told"),
    "fewer steps": Attack(privacy(steps=0), "steps=0, told"),
    "text for noise": Attack(privacy(noise_multiplier="x" * 10**6), "noise_multiplier=xxx"),
    "no report": Attack(with_content(lambda c: c.pop("privacy")), "did not report"),
    "no charge": Attack(privacy(charges=0), "charges=0"),
    "a charge of text": Attack(privacy(charges="1\n2"), "charges="),
    "endless charges": Attack(privacy(charges=10**9), "answered 1000000000 times"),
    "another size": Attack(metric("num-examples", 77), "its plan is for"),
}
HONEST = 3


def name_of(partition: int) -> str:
    return f"client-{partition:05d}"


def attacks_on(style: str) -> dict[str, Attack]:
    return REFUSED | (RECORD_LEVEL if style in ("sample", "hybrid") else {})


def epsilons(folder: Path) -> dict[str, float]:
    report = json.loads((folder / "privacy_report.json").read_text())
    return {g["unit"]: g["epsilon"] for g in report.get("guarantees", [])}


@dataclass(frozen=True)
class Attacked:
    """A run of three honest clients, and one client for each attack."""

    result: RunResult
    said: list[str]
    honest: dict[str, float]

    def rows(self, style: str) -> list[dict[str, Any]]:
        file = "metrics.jsonl" if style == "none" else "private/rounds.jsonl"
        lines = (self.result.run_dir / file).read_text().splitlines()
        return [row for row in map(json.loads, lines) if row.get("round")]


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Attacked]:
    known: dict[str, Attacked] = {}

    def of(style: str) -> Attacked:
        if style not in known:
            path = tmp_path_factory.mktemp(style)
            attacks = {HONEST + i: a.reply for i, a in enumerate(attacks_on(style).values())}
            clients = HONEST + len(attacks)
            listener = Listener()
            heard = (logging.getLogger("dp_fedmed"), cohort_logger)
            for logger in heard:
                logger.addHandler(listener)
            try:
                config = settings(style, path / "attacked", *NETWORK, clients=clients)
                result = federate(config, attacks)
            finally:
                for logger in heard:
                    logger.removeHandler(listener)
            quiet = federate(settings(style, path / "quiet", *NETWORK, clients=clients), {})
            known[style] = Attacked(result, listener.said, epsilons(quiet.run_dir))
        return known[style]

    return of


@pytest.mark.parametrize(
    ("style", "name"), [(style, name) for style in STYLES for name in attacks_on(style)]
)
def test_an_unfit_reply_is_refused_and_said_once(
    style: str, name: str, attacked: Callable[[str], Attacked]
) -> None:
    run = attacked(style)
    client = name_of(HONEST + list(attacks_on(style)).index(name))
    about = [line for line in run.said if f"{client} contributed" in line]
    assert len(about) == 1, "two rounds, one warning"
    assert attacks_on(style)[name].said in about[0]
    assert all(client in row["failed"] for row in run.rows(style))


@pytest.mark.parametrize("style", STYLES)
def test_a_run_full_of_hostile_clients_ends_with_the_honest_ones_and_the_right_epsilon(
    style: str, attacked: Callable[[str], Attacked]
) -> None:
    run = attacked(style)
    assert (run.result.stopped, run.result.rounds) == ("completed", 2)
    for row in run.rows(style):
        assert not {name_of(i) for i in range(HONEST)} & set(row["failed"])
    assert epsilons(run.result.run_dir) == run.honest, "what was charged is not given back"
    if style != "none":
        assert not list(LedgerView(run.result.run_dir).problems())
    model = RunDirectory(run.result.run_dir).load_model()
    assert all(np.isfinite(value).all() for value in model.values())


@pytest.mark.parametrize("style", STYLES)
def test_nobody_writes_lines_of_its_own_into_the_log(
    style: str, attacked: Callable[[str], Attacked]
) -> None:
    run = attacked(style)
    for line in run.said:
        assert line.isprintable()
        assert len(line) < 400
        assert SECRET not in line
    text = "".join(path.read_text() for path in run.result.run_dir.rglob("run.log"))
    assert "contributed nothing" in text
    assert not [line for line in text.splitlines() if line.startswith("ERROR forged")]
    assert SECRET not in text
    assert "\x1b" not in text


def flat(state: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([value.ravel().astype(np.float64) for value in state.values()])


def attack_of(attack: Reply | None) -> dict[int, Reply]:
    return {} if attack is None else {HOSTILE: attack}


BOUNDED = {
    "1e30": arrays(filled(1e30)),
    "the largest float": arrays(filled(float(np.finfo(np.float32).max))),
    "a million times its update": arrays(lambda a: a * a.dtype.type(1e6)),
    "NaN": arrays(filled(np.nan)),
    "its update and another 50 times": twice,
    "an old reply": replayed,
    "1e9 examples": metric("num-examples", 10**9),
}


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("style", ["user", "hybrid"])
@pytest.mark.parametrize("name", BOUNDED)
def test_one_client_moves_the_model_by_at_most_c(style: str, name: str, tmp_path: Path) -> None:
    """Noise off, one round: with the client whatever it sends, against without it."""
    models = []
    for attack in (BOUNDED[name], absent):
        path = tmp_path / f"run{len(models)}"
        config = settings(style, path, *NETWORK, "privacy.noise_seed=1", rounds=1)
        models.append(flat(RunDirectory(federate(config, attack_of(attack)).run_dir).load_model()))
    assert np.linalg.norm(models[0] - models[1]) * CLIENTS <= C * (1 + 1e-5)


@pytest.mark.parametrize("style", ["none", "sample"])
@pytest.mark.parametrize("name", ["1e30", "the largest float"])
def test_where_nobody_clips_absurd_updates_are_refused(
    style: str, name: str, tmp_path: Path
) -> None:
    models = []
    for attack in (BOUNDED[name], absent):
        path = tmp_path / f"run{len(models)}"
        seed = ("privacy.noise_seed=1",) if style == "sample" else ()
        config = settings(style, path, *NETWORK, *seed, rounds=1)
        models.append(flat(RunDirectory(federate(config, attack_of(attack)).run_dir).load_model()))
    assert np.array_equal(*models)


@pytest.mark.parametrize("style", STYLES)
def test_a_second_reply_changes_nothing(style: str, tmp_path: Path) -> None:
    models = []
    for attack in (None, twice):
        path = tmp_path / f"run{len(models)}"
        seed = () if style == "none" else ("privacy.noise_seed=1",)
        config = settings(style, path, *NETWORK, *seed, rounds=1)
        models.append(flat(RunDirectory(federate(config, attack_of(attack)).run_dir).load_model()))
    assert np.array_equal(*models)


def test_a_client_that_claims_more_charges_only_raises_epsilon(tmp_path: Path) -> None:
    spent = []
    for number, attack in enumerate((None, privacy(charges=3))):
        config = settings("sample", tmp_path / f"run{number}", *NETWORK)
        spent.append(epsilons(federate(config, attack_of(attack)).run_dir)["record"])
    assert spent[1] > spent[0]


@pytest.mark.parametrize("style", ["none", "sample", "user"])
def test_evaluations_are_checked_alike(
    style: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attack = metric("num-examples", 1e30)
    with caplog.at_level(logging.WARNING, logger="dp_fedmed"):
        every = "federation.client_evaluate_every=1"
        config = settings(style, tmp_path / "run", *NETWORK, every)
        result = federate(config, {HOSTILE: attack}, "evaluate")
    assert sorted(result.clients) == [f"client-{i:05d}" for i in range(HOSTILE)]
    assert len([line for line in caplog.messages if f"{NAME} did not evaluate" in line]) == 1


@pytest.mark.parametrize("style", STYLES)
def test_anomaly_answers_are_checked_alike(style: str, tmp_path: Path) -> None:
    names = ("NaN", "other floats", "another shape", "32 MB", "1e30 examples", "an old reply")
    rounds = 1 if style == "none" else 2
    attacks = {HONEST + i: REFUSED[name].reply for i, name in enumerate(names)}
    attacks[HONEST + len(names)] = BOUNDED["1e30"]
    clients = HONEST + len(attacks)
    config = settings(style, tmp_path / "run", *ANOMALY, rounds=rounds, clients=clients)
    result = federate(config, attacks)
    assert (result.stopped, result.rounds) == ("completed", rounds)
    said = next(result.run_dir.rglob("run.log")).read_text().splitlines()
    for number in range(HONEST, HONEST + len(names)):
        about = [line for line in said if f"{name_of(number)} contributed" in line]
        assert 1 <= len(about) == len({m.partition("nothing")[2] for m in about})
    model = RunDirectory(result.run_dir).load_model()
    assert all(np.abs(value).max() < 1e6 for value in model.values())


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"name": "client-00000"}, "two nodes have the name 'client-00000'"),
        ({"name": "x\nERROR forged"}, "told a name that is not valid"),
        ({}, "told a name that is not valid"),
        ({"name": "x", "num-records": -1}, "num-records=-1"),
        ({"name": "x", "num-records": 10**12}, "num-records=1000000000000"),
        ({"name": "x", "num-records": 1e300}, "num-records=1e\\+300"),
        ({"name": "x", "num-records": "1\n2"}, "num-records=1 2"),
    ],
)
def test_a_forged_introduction_stops_the_run_before_it_begins(
    told: dict[str, Any], said: str, tmp_path: Path
) -> None:
    def lie(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
        content = RecordDict({"client": ConfigRecord(told)}) if told else RecordDict()
        return [Message(content, reply_to=message)]

    config = settings("sample", tmp_path / "run", *NETWORK)
    grid = HostileGrid(build_client_app(config), num_clients=CLIENTS, workers=1)
    grid.attacks, grid.verb = {HOSTILE: lie}, "query.name"
    with pytest.raises(NodeError, match=said) as caught:
        wait_for_nodes(grid, expected=CLIENTS, timeout=1, ask_all=True)
    assert str(caught.value).isprintable()


def test_different_complaints_about_one_client_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = iter(range(100))

    def ever_new(message: Message, reply: Message, earlier: list[Message]) -> list[Message]:
        return error(f"failure {next(counted)}")(message, reply, earlier)

    with caplog.at_level(logging.WARNING, logger="dp_fedmed"):
        config = settings("none", tmp_path / "run", *NETWORK, "federation.evaluate_every=0")
        federation = replace(config.federation, num_rounds=15, client_evaluate_every=0)
        federate(config.replace(federation=federation), {HOSTILE: ever_new})
    assert len([line for line in caplog.messages if f"{NAME} contributed" in line]) == 10
