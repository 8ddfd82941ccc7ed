"""A server that asks a client for what a server in good order would not: the client refuses.

The client is the real ClientApp of a deployed site, with its own state directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from dp_fedmed.assemble import client_runtime
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import compose, from_run_config
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation import flower_compat
from dp_fedmed.planning.plan import sample_rate, steps_per_round
from dp_fedmed.privacy import get_privacy_spent
from dp_fedmed.site.records import UNFIT
from dp_fedmed.site.rules import SiteRules

SECRET = "tuberculosis-1957"
SIGMA = 4.0
WORDS = (
    *("privacy=sample", "privacy.sample.grad_mode=hooks", "privacy.sample.noise_multiplier=4"),
    *("privacy.sample.target_epsilon=null", "model._target_=dp_fedmed.models.MLP"),
    "privacy.accountant=rdp",
    *("model.args.hidden=[4]", "training.local_steps=2", "training.batch_size=9999"),
    *("federation.num_clients=2", "data.partition.min_records=1"),
)


class ClientFailed(Exception):
    """What a client answers when it fails."""


class Site:
    """One hospital: its node-config, its state directory, the ClientApp that its node starts."""

    def __init__(self, folder: Path, *words: str, **rules: Any) -> None:
        flower_compat.set_identity(1)
        self.config = compose([*WORDS, f"run_dir={folder}/run", *words])
        self.state = folder / SECRET / "state"
        self.node = {"client-id": "north", "state-dir": str(self.state)} | {
            key.replace("_", "-"): value for key, value in rules.items()
        }
        self.restart()
        own = client_runtime(self.config)
        records, _ = own.records(self.node)
        own.work.build(records.x.shape[1:], 2)
        self.model = {name: v.copy() for name, v in own.work.state.read().items()}  # type: ignore[attr-defined]
        self.told: dict[str, Any] = {
            "round": 1,
            "noise_multiplier": SIGMA,
            "sample_rate": sample_rate(len(records), self.config.training),
            "steps": steps_per_round(len(records), self.config.training),
            "grad_mode": "hooks",
            "run": "demo",
            "streams": "demo",
            "phase": 0,
            "ledger": 1,
            "style": "sample",
            "noised_by": "client",
            "input_shape": [30],
            "num_classes": 2,
        }

    def restart(self) -> None:
        self.app = build_client_app(self.config)

    def ask(
        self, arrays: dict[str, np.ndarray] | None = None, verb: str = "train", **changed: Any
    ) -> RecordDict:
        told = ConfigRecord({**self.told, **changed})
        record = model_arrays.to_record(arrays if arrays is not None else self.model)
        message = Message(RecordDict({"arrays": record, "config": told}), 1, verb)
        context = Context(
            run_id=1, node_id=1, node_config=self.node, state=RecordDict(), run_config={}
        )
        reply = self.app(message, context)
        if reply.has_error():
            raise ClientFailed(reply.error.reason)
        return reply.content

    def refuses(
        self, kind: str, arrays: dict[str, np.ndarray] | None = None, **changed: Any
    ) -> str:
        """That it does, by what kind of error, and what it says to the server."""
        before = self.charges()
        with pytest.raises(ClientFailed) as caught:
            self.ask(arrays, **changed)
        said = str(caught.value)
        what = f"{kind} in the client" if kind.isidentifier() else kind
        assert said == f"{what} (details are in its own log)"
        assert len(self.charges()) == len(before), "what is refused is not charged"
        return said

    def charges(self) -> list[dict[str, Any]]:
        file = self.state / "north.jsonl"
        if not file.exists():
            return []
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [row["body"] for row in rows if row["kind"] == "CHARGE"]


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Site]:
    return lambda *words, **rules: Site(tmp_path, *words, **rules)


def flat(content: RecordDict) -> np.ndarray:
    state = model_arrays.from_record(content.array_records["arrays"])
    return np.concatenate([value.ravel() for value in state.values()]).astype(np.float64)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("ConfigError", {"noise_multiplier": 3.9}),
        ("ConfigError", {"noise_multiplier": 0.0}),
        ("ConfigError", {"noise_multiplier": -4.0}),
        ("ConfigError", {"noise_multiplier": float("nan")}),
        ("ConfigError", {"noise_multiplier": float("inf")}),
        ("ConfigError", {"noise_multiplier": "much"}),
        ("ConfigError", {"sample_rate": 0.5}),
        ("ConfigError", {"sample_rate": 1e-9}),
        ("ConfigError", {"steps": 3}),
        ("ConfigError", {"steps": 1}),
        ("ConfigError", {"steps": 10**9}),
        ("ConfigError", {"style": "none"}),
        ("ConfigError", {"style": "user"}),
        ("ValueError", {"grad_mode": "none"}),
        (UNFIT, {"input_shape": [10**6, 10**6]}),
        (UNFIT, {"num_classes": 10**12}),
        (UNFIT, {"num_classes": -1}),
    ],
)
def test_a_client_refuses_what_its_settings_do_not_imply(
    kind: str, changed: dict[str, Any], site: Callable[..., Site]
) -> None:
    client = site()
    client.refuses(kind, **changed)
    client.ask()
    assert len(client.charges()) == 1, "and answers a server in good order afterwards"


@pytest.mark.parametrize("key", ["noise_multiplier", "sample_rate", "steps", "run", "ledger"])
def test_a_client_that_is_not_told_all_does_not_guess(key: str, site: Callable[..., Site]) -> None:
    client = site()
    del client.told[key]
    with pytest.raises(ClientFailed):
        client.ask()
    assert client.charges() == []


def test_settings_in_a_message_change_nothing(site: Callable[..., Site]) -> None:
    """A larger C, lr or batch, and another δ are the configuration's, not a message's."""
    client = site()
    wanted = {"max_grad_norm": 1e6, "training.lr": 9.0, "batch_size": 10**6, "target_delta": 0.5}
    assert np.array_equal(flat(client.ask()), flat(client.ask(**wanted)))
    assert len(client.charges()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {n: np.full_like(v, np.nan) for n, v in m.items()},
        lambda m: {n: np.full_like(v, np.inf) for n, v in m.items()},
        lambda m: {n: v.astype(np.float64) for n, v in m.items()},
        lambda m: {n: v.reshape(1, *v.shape) for n, v in m.items()},
        lambda m: {n: np.zeros((1,) * v.ndim, v.dtype) for n, v in m.items()},
        lambda m: {**m, "more": np.zeros(3, np.float32)},
        lambda m: dict(list(m.items())[1:]),
        lambda m: {},
        lambda m: {n: np.zeros(2**22, np.float32) for n in m},
    ],
    ids=["NaN", "infinity", "float64", "shape", "broadcast", "more", "less", "nothing", "huge"],
)
def test_a_model_that_is_not_its_own_is_refused(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], site: Callable[..., Site]
) -> None:
    client = site()
    client.refuses("ArrayError", change(client.model))


def until_refused(client: Site, ask: Callable[[int], object]) -> int:
    """How many rounds a client answers before its budget is spent."""
    for number in range(1, 100):
        try:
            ask(number)
        except ClientFailed as refused:
            if not str(refused).startswith("BudgetRefused"):
                raise
            return len(client.charges())
    raise AssertionError("it never refused")


def cost(rounds: int) -> float:
    return get_privacy_spent(noise_multiplier=SIGMA, sample_rate=1.0, steps=2 * rounds, delta=1e-5)


def test_more_rounds_than_the_runs_budget_are_refused(site: Callable[..., Site]) -> None:
    client = site("privacy.sample.target_epsilon=4", "privacy.sample.target_delta=1e-5")
    rounds = until_refused(client, lambda n: client.ask(round=n, ledger=n))
    assert cost(rounds) <= 4.0 < cost(rounds + 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_all_runs_together_keep_to_the_sites_own_limit(
    restarts: bool, site: Callable[..., Site]
) -> None:
    """A server that begins a new run for every round, with whatever target it likes."""
    client = site(max_epsilon=4.0, delta=1e-5)

    def new_run(number: int) -> None:
        client.ask(run=f"run{number}", streams=f"run{number}")
        if restarts:
            client.restart()

    rounds = until_refused(client, new_run)
    assert cost(rounds) <= 4.0 < cost(rounds + 1)


def test_the_same_round_again_costs_nothing_and_tells_nothing(site: Callable[..., Site]) -> None:
    client = site()
    first = flat(client.ask())
    for _ in range(5):
        assert np.array_equal(flat(client.ask()), first), "the very same noise"
    client.restart()
    assert np.array_equal(flat(client.ask()), first)
    assert len(client.charges()) == 1


def test_averaging_is_paid_for(site: Callable[..., Site]) -> None:
    """Another name of the streams gives other noise for the same sum: a release each time."""
    client = site(max_epsilon=4.0, delta=1e-5)
    answers: list[np.ndarray] = []
    rounds = until_refused(client, lambda n: answers.append(flat(client.ask(streams=f"stream{n}"))))
    assert cost(rounds) <= 4.0 < cost(rounds + 1)
    assert not np.array_equal(answers[0], answers[1])


def test_a_round_with_another_model_is_another_round(site: Callable[..., Site]) -> None:
    client = site()
    client.ask()
    other = {name: value + np.float32(0.5) for name, value in client.model.items()}
    client.refuses("ServerRefused", other)  # its ledger did not grow
    client.ask(other, ledger=2)
    assert len(client.charges()) == 2


def test_a_ledger_that_goes_back_or_forks_is_refused(site: Callable[..., Site]) -> None:
    client = site()
    client.ask(round=1, ledger=3)
    client.ask(round=2, ledger=5)
    for ledger in (5, 4, 3, 1, 0, -1):
        client.refuses("ServerRefused", round=3, ledger=ledger)
    client.restart()
    client.refuses("ServerRefused", round=3, ledger=4)
    client.ask(round=1, ledger=6, phase=1)  # a server that goes back on purpose pays again
    assert [row["server_round"] for row in client.charges()] == [1, 2, 1]


def test_a_shortened_ledger_of_the_clients_own_is_noticed(site: Callable[..., Site]) -> None:
    client = site()
    client.ask()
    client.ask(round=2, ledger=2)
    file = client.state / "north.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:1], *lines[2:]]))
    client.restart()
    with pytest.raises(ClientFailed, match="LedgerError"):
        client.ask(round=3, ledger=3)


@pytest.mark.parametrize(
    ("words", "rules", "said"),
    [
        (["privacy=none"], {"max_epsilon": 3.0}, "privacy.style=none adds no noise"),
        (["privacy=user"], {"max_epsilon": 3.0}, "privacy.style=user adds no noise"),
        (["privacy=sample", "privacy.noise_seed=1"], {}, "privacy.noise_seed=1"),
        (
            ["task=textures", "privacy=sample", "privacy.noise=server"],
            {"max_epsilon": 3.0},
            "privacy.noise=server adds no noise",
        ),
        (
            ["allow_code=[os]", "model._target_=os.system"],
            {},
            "model._target_=os.system names code outside dp_fedmed.models and torchvision.models",
        ),
        (
            ["allow_code=[my_package]", "data.name=my_package.load"],
            {"allow_code": "other_package"},
            "allow-code='my_package' in the node-config",
        ),
    ],
)
def test_settings_of_a_server_do_not_overrule_the_site(
    words: list[str], rules: dict[str, Any], said: str
) -> None:
    node = {"client-id": "north"} | {key.replace("_", "-"): v for key, v in rules.items()}
    with pytest.raises(ConfigError) as caught:
        SiteRules.of(node).check(compose(words))
    assert said in str(caught.value)
    SiteRules.of({**node, "partition-id": 0}).check(compose(words))  # a simulation is one party


def test_code_that_the_site_allows_is_let_through() -> None:
    config = compose(["allow_code=[my_package]", "data.name=my_package.load"])
    SiteRules.of({"client-id": "north", "allow-code": "other, my_package"}).check(config)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"max_epsilon": 3}, "did you mean max-epsilon"),
        ({"max-epsilon": 0}, "max-epsilon=0"),
        ({"max-epsilon": float("nan")}, "max-epsilon=nan"),
        ({"max-epsilon": "3"}, "max-epsilon='3'"),
        ({"max-epsilon": True}, "max-epsilon=True"),
        ({"delta": 0.9}, "delta=0.9"),
        ({"publish-metrics": "no"}, "publish-metrics='no'"),
    ],
)
def test_a_rule_with_a_mistake_is_no_rule_and_so_refused(node: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SiteRules.of({"client-id": "north", **node})


def test_metrics_of_private_records_are_not_sent_under_a_limit(site: Callable[..., Site]) -> None:
    client = site(max_epsilon=3.0)
    client.refuses("ConfigError", verb="evaluate")
    assert "accuracy" in site(max_epsilon=3.0, publish_metrics=True).ask(verb="evaluate")["metrics"]
    assert "accuracy" in site().ask(verb="evaluate")["metrics"]


def test_what_a_client_says_holds_no_path_and_no_record(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    client = site()
    elsewhere = [f"data.path={tmp_path}/{SECRET}.npz", "data.name=medmnist"]
    client.config = compose([*WORDS, *elsewhere, f"run_dir={tmp_path}/run"])
    client.restart()
    with pytest.raises(ClientFailed) as caught:
        client.ask()
    assert SECRET not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_hydras_own_settings_are_not_taken_from_a_run_config() -> None:
    with pytest.raises(ConfigError, match=r"hydra\.callbacks"):
        from_run_config({"overrides": "+hydra.callbacks.x._target_=os.system"})


def test_a_site_without_a_state_directory_does_not_train_privately(tmp_path: Path) -> None:
    client = Site(tmp_path)
    del client.node["state-dir"]
    with pytest.raises(ClientFailed, match="it has no state-dir"):
        client.ask()
