"""No setting is taken in silence: it has an effect, or the run is refused."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dp_fedmed.commands.arguments import with_config_dir
from dp_fedmed.config import compose, conf_dir, from_run_config, given_keys, leaf_keys
from dp_fedmed.config.effects import EFFECTS, refuse_without_effect, unmet
from dp_fedmed.errors import ConfigError

pytestmark = pytest.mark.usefixtures("strict")
#: For each key of the table, (settings in which it counts, settings in which it does not).
BOTH: dict[str, tuple[str, str]] = {
    "federation.max_dropouts": ("privacy=user privacy.noise=shares", "privacy=user"),
    "federation.max_colluding": (
        "privacy=none federation.secure_aggregation=true",
        "privacy=sample",
    ),
    "privacy.sample.target_epsilon": ("privacy=sample", "privacy=none"),
    "privacy.sample.noise_multiplier": ("privacy=hybrid", "privacy=user"),
    "privacy.sample.target_delta": ("privacy=sample", "privacy=user"),
    "privacy.sample.max_grad_norm": ("privacy=sample", "privacy=none"),
    "privacy.sample.calibration": (
        "privacy=sample",
        "privacy=sample privacy.sample.noise_multiplier=1",
    ),
    "privacy.sample.grad_mode": ("privacy=sample", "privacy=sample task=textures"),
    "privacy.sample.physical_batch_size": ("privacy=sample", "privacy=sample task=textures"),
    "privacy.user.target_epsilon": ("privacy=user", "privacy=sample"),
    "privacy.user.noise_multiplier": ("privacy=hybrid", "privacy=none"),
    "privacy.user.target_delta": ("privacy=user", "privacy=sample"),
    "privacy.user.max_grad_norm": ("privacy=user", "privacy=none"),
    "privacy.user.clipping": ("privacy=user", "privacy=sample"),
    "privacy.user.target_quantile": (
        "privacy=user privacy.user.clipping=adaptive",
        "privacy=user",
    ),
    "privacy.user.clip_lr": ("privacy=user privacy.user.clipping=adaptive", "privacy=user"),
    "privacy.accountant": ("privacy=user", "privacy=none"),
    "privacy.noise_seed": ("privacy=sample", "privacy=none"),
    "task.loss": ("task=cells", "task=textures privacy=none"),
    "model._target_": ("task=digits", "task=textures privacy=none"),
    "model.args": ("task=digits", "task=textures privacy=none"),
    "model.fix": ("task=digits", "task=textures privacy=none"),
    "training.optimizer": ("task=digits", "task=textures privacy=none"),
    "training.lr": ("task=digits", "task=textures privacy=none"),
    "training.momentum": ("task=digits", "task=digits training.optimizer=adam"),
    "training.weight_decay": ("task=digits", "task=textures privacy=none"),
    "training.batch_size": ("task=digits", "task=textures privacy=sample"),
    "training.local_epochs": ("recipe=none", "training.local_steps=3"),
    "training.local_steps": ("task=digits", "task=textures privacy=none"),
    "anomaly.mechanism": ("task=textures privacy=sample", "task=textures privacy=none"),
    "anomaly.backbone": ("task=textures privacy=none", "task=digits"),
    "anomaly.weights": ("task=mvtec_folder privacy=none", "task=textures privacy=none"),
    "anomaly.layers": ("task=textures privacy=none", "task=digits"),
    "anomaly.dimension": ("task=textures privacy=none", "task=digits"),
    "anomaly.grid": ("task=textures privacy=none", "task=digits"),
    "anomaly.coreset_size": ("task=textures privacy=none", "task=textures privacy=sample"),
    "anomaly.coreset_ratio": (
        "task=textures privacy=none anomaly.coreset_size=null",
        "task=textures privacy=sample anomaly.coreset_size=null",
    ),
    "anomaly.rows_per_image": (
        "task=textures privacy=sample anomaly.mechanism=noisy_rows",
        "task=textures privacy=none",
    ),
    "anomaly.neighbours": ("task=textures privacy=none", "task=textures privacy=sample"),
    "privacy.noise": ("task=digits privacy=sample", "task=digits privacy=none"),
    "data.num_records": ("task=cells", "task=digits"),
    "data.image_size": ("task=cells", "task=breast_cancer"),
    "data.val_fraction": ("task=digits", "task=medmnist"),
    "data.test_fraction": ("task=diabetes", "task=fashion_mnist"),
    "data.max_records_per_group": ("data.group_by=patient", "data.group_by=null"),
    "data.partition.alpha": ("data.partition.name=dirichlet", "data.partition.name=iid"),
    "data.partition.classes_per_client": (
        "data.partition.name=pathological",
        "data.partition.name=iid",
    ),
    "data.partition.skew": ("data.partition.name=size_skewed", "data.partition.name=dirichlet"),
    "federation.weighting": ("privacy=none", "privacy=none federation=local_only"),
    "federation.server_momentum": (
        "federation.server_optimizer=fedavgm",
        "federation.server_optimizer=fedavg",
    ),
    "federation.server_beta2": (
        "federation.server_optimizer=fedadam",
        "federation.server_optimizer=fedavgm",
    ),
    "federation.server_tau": (
        "federation.server_optimizer=fedadam",
        "federation.server_optimizer=fedavg",
    ),
    "federation.client_evaluate_max": (
        "federation.client_evaluate_every=5",
        "federation.client_evaluate_every=0",
    ),
    "federation.connect_timeout": ("engine=ray", "engine=local"),
    "new_phase": ("run_dir=/nowhere resume=last", "seed=1"),
}
VALUES = {
    "privacy.sample.calibration": "worst_client",
    "privacy.sample.grad_mode": "hooks",
    "privacy.user.clipping": "adaptive",
    "privacy.accountant": "pld",
    "task.loss": "dice_ce",
    "model._target_": "dp_fedmed.models.MLP",
    "model.args": "{a: 1}",
    "model.fix": "false",
    "training.optimizer": "adam",
    "training.local_steps": "2",
    "anomaly.mechanism": "dp_prototypes",
    "anomaly.backbone": "tiny",
    "anomaly.layers": "[a]",
    "anomaly.weights": "random",
    "privacy.noise": "server",
    "new_phase": "true",
    "anomaly.coreset_size": "50",
    "data.num_records": "50",
    "data.image_size": "32",
    "data.partition.skew": "square",
    "federation.weighting": "uniform",
    "training.lr": "0.1",
    "privacy.user.target_quantile": "0.4",
    "privacy.sample.target_delta": "1e-6",
    "privacy.user.target_delta": "1e-6",
    "privacy.user.clip_lr": "0.1",
    "training.momentum": "0.5",
    "training.weight_decay": "0.1",
    "anomaly.coreset_ratio": "0.1",
    "data.val_fraction": "0.1",
    "data.test_fraction": "0.1",
    "federation.server_tau": "0.1",
    "federation.server_momentum": "0.5",
    "federation.server_beta2": "0.5",
}
#: Always read, or refused by `validate` where they would contradict the rest.
ALWAYS = {
    "federation.secure_aggregation",
    *("task.name", "task.kind", "task.metric", "data.name", "data.id", "data.path"),
    *("data.client_val_fraction", "data.group_by", "data.partition.name"),
    *("data.partition.min_records", "training.threads", "training.device"),
    *("federation.topology", "federation.num_clients", "federation.num_rounds"),
    *("federation.sampler", "federation.sample_rate", "federation.max_participations"),
    *("federation.min_clients", "federation.server_optimizer", "federation.server_lr"),
    *("federation.round_timeout", "federation.evaluate_every"),
    *("federation.client_evaluate_every", "engine.name", "engine.workers", "engine.address"),
    *("privacy.style", "checkpoint.every", "checkpoint.keep", "allow_code", "seed", "run_dir"),
    *("data_ledger", "resume"),
}


def test_every_key_of_the_tree_counts_always_or_has_a_declared_condition() -> None:
    conditional = {k for k in leaf_keys() if any(effect.is_about(k) for effect in EFFECTS)}
    assert conditional == set(BOTH)
    assert set(leaf_keys()) - conditional == ALWAYS


def test_every_key_is_read_outside_of_the_settings() -> None:
    package = conf_dir().parent / "dp_fedmed"
    files = [f for f in package.rglob("*.py") if not f.name.startswith(("config_", "settings"))]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for key in leaf_keys():
        assert re.search(rf"\.{key.rsplit('.', 1)[-1]}\b", code), key


@pytest.mark.parametrize("key", BOTH)
def test_a_setting_counts_where_it_is_declared_to_and_is_refused_elsewhere(key: str) -> None:
    counts, in_vain = BOTH[key]
    word = f"{key}={VALUES.get(key, '1')}"
    compose([*counts.split(), word])
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)}=.* has no effect with .*it needs"):
        compose([*in_vain.split(), word])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "privacy=none privacy.sample.target_epsilon=3",
            "has no effect with privacy.style=none: it needs privacy=sample or privacy=hybrid",
        ),
        ("privacy=sample privacy.user={target_epsilon: 1}", "privacy.user.target_epsilon=1 has no"),
        ("task=textures privacy=none model.args.hidden=[3]", "model.args.hidden=[3] has no effect"),
        (
            "task=textures privacy=sample anomaly.mechanism=dp_gaussian anomaly.coreset_ratio=0.3",
            "anomaly.coreset_ratio=0.3 has no effect",
        ),
        ("task=textures privacy=none ++model.args.a.b=3", "model.args.a.b="),
    ],
)
def test_the_refusal_names_the_setting_and_what_it_needs(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        compose(re.split(r" (?=[+a-z])(?!target)", words))


def test_what_recipes_and_groups_bring_is_nobodys_wish() -> None:
    compose(["privacy=none", "federation=cross_device", "federation.server_optimizer=fedavg"])
    compose(["task=cells", "privacy=sample", "federation.server_optimizer=fedavg"])


def test_null_asks_for_nothing() -> None:
    compose(["privacy=none", "privacy.sample.target_epsilon=null"])


def test_flowers_run_config_is_checked_alike() -> None:
    run = {"task": "digits", "privacy": "none", "run-dir": "/x"}
    assert from_run_config({**run, "overrides": "federation.connect_timeout=30"})
    with pytest.raises(ConfigError, match=r"privacy.user.target_epsilon=3 has no effect"):
        from_run_config({**run, "overrides": "privacy.user.target_epsilon=3"})
    with pytest.raises(ConfigError, match=r"engine\.workers=2.*flwr run chooses"):
        from_run_config({**run, "overrides": "engine.workers=2"})


def test_a_key_of_a_sweep_must_count_in_one_job_at_least() -> None:
    jobs = [compose([f"privacy={style}"]) for style in ("none", "user", "sample")]
    refuse_without_effect(iter(jobs), ["privacy.sample.max_grad_norm", "seed"])
    with pytest.raises(ConfigError, match=r"privacy.sample.max_grad_norm=1 has no effect"):
        refuse_without_effect(iter(jobs[:2]), ["privacy.sample.max_grad_norm"])


def test_files_of_ones_own_are_wishes_too(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    text = (conf_dir() / "task" / "digits.yaml").read_text()
    (tmp_path / "task" / "mine.yaml").write_text(
        f"{text}privacy: {{sample: {{target_delta: 1e-6}}}}\n"
    )
    words = with_config_dir(["--config-dir", str(tmp_path), "task=mine"])
    assert compose([*words, "privacy=sample"]).privacy.sample.target_delta == 1e-6
    with pytest.raises(ConfigError, match=r"privacy.sample.target_delta=1e-06 has no effect"):
        compose([*words, "privacy=none"])


def test_a_resumed_run_is_checked_with_the_style_that_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(compose(["privacy=user", f"run_dir={folder}"]).to_yaml())
    words = [f"run_dir={folder}", "resume=last"]
    assert unmet(compose(words), "privacy.user.target_epsilon") is None
    with pytest.raises(ConfigError, match=r"privacy.sample.target_epsilon=1 has no effect"):
        compose([*words, "privacy.sample.target_epsilon=1"])


def _commands() -> list[str]:
    pages = [conf_dir().parent / "README.md", *(conf_dir().parent / "docs").rglob("*.md")]
    texts = [re.sub(r"\\\n *", " ", page.read_text(encoding="utf-8")) for page in pages]
    texts.append((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    found = re.findall(
        r"^ *dp-fedmed (?:run|plan|data|audit) (?!.*(?:resume=|\||\$))(.*)$", "\n".join(texts), re.M
    )
    return sorted({re.split(r" #|   ", line)[0].strip() for line in found})


@pytest.mark.parametrize("command", _commands())
def test_no_documented_command_has_a_setting_without_effect(command: str) -> None:
    words = [word for word in shlex.split(command) if re.match(r"[\w.]+=", word)]
    parsed = OverridesParser.create().parse_overrides(words)
    if any(override.key_or_group == "sweep" for override in parsed):
        words.append("privacy=sample")
    choices = [
        list(override.sweep_string_iterator()) if override.is_sweep_override() else [word]
        for override, word in zip(parsed, words, strict=False)
    ]
    chosen = [
        [f"{o.key_or_group}={v}" if "=" not in v else v for v in values]
        for o, values in zip(parsed, choices, strict=True)
    ]
    runs = (compose([*job, *words[len(parsed) :]], given=()) for job in itertools.product(*chosen))
    refuse_without_effect(runs, given_keys(words))
