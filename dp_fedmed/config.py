"""The typed configuration tree, its validation, and `compose`, the one way to obtain it.

Hydra's command line and Flower's run-config both end in the same frozen `Config`. Nothing heavy is
imported here: `dp-fedmed run --help` depends on it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


class ConfigError(ValueError):
    """A setting that cannot be right; it names the key, the value and a value that works."""


class TaskKind(StrEnum):
    """What is learned."""

    classification = "classification"
    segmentation = "segmentation"


class Loss(StrEnum):
    """Training losses; each is a mean of per-record losses."""

    cross_entropy = "cross_entropy"
    soft_dice = "soft_dice"
    dice_ce = "dice_ce"


class OptimizerName(StrEnum):
    """Optimizers of a client's local training."""

    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


class ServerOptimizerName(StrEnum):
    """How the server applies the averaged update (Reddi et al. 2021)."""

    fedavg = "fedavg"
    fedavgm = "fedavgm"
    fedadam = "fedadam"


class SamplerName(StrEnum):
    """Who takes part in a round."""

    all = "all"
    fixed = "fixed"
    poisson = "poisson"


class Weighting(StrEnum):
    """How much a client's update counts in the average."""

    examples = "examples"
    uniform = "uniform"


class PartitionName(StrEnum):
    """How one data set is spread over simulated clients."""

    iid = "iid"
    dirichlet = "dirichlet"
    pathological = "pathological"
    size_skewed = "size_skewed"
    natural = "natural"


class EngineName(StrEnum):
    """Where the clients compute."""

    local = "local"
    ray = "ray"


class PrivacyStyle(StrEnum):
    """Whose data a guarantee is about."""

    none = "none"
    sample = "sample"
    user = "user"
    hybrid = "hybrid"

    @property
    def protects_records(self) -> bool:
        """Whether clients train with DP-SGD."""
        return self in (PrivacyStyle.sample, PrivacyStyle.hybrid)

    @property
    def protects_clients(self) -> bool:
        """Whether the server clips and noises whole updates."""
        return self in (PrivacyStyle.user, PrivacyStyle.hybrid)


class AccountantName(StrEnum):
    """Which accountant calibrates and enforces."""

    rdp = "rdp"
    pld = "pld"


class Calibration(StrEnum):
    """Whether each client uses up its own budget, or all use the σ of the one that needs most."""

    per_client = "per_client"
    worst_client = "worst_client"


class GradMode(StrEnum):
    """How per-sample gradients are computed; `auto` measures once and stores its choice."""

    auto = "auto"
    hooks = "hooks"
    functorch = "functorch"
    ghost = "ghost"


class Clipping(StrEnum):
    """How the norm that bounds a client's update is found."""

    fixed = "fixed"
    adaptive = "adaptive"


@dataclass(frozen=True)
class TaskConfig:
    """What is learned and how a model is judged."""

    name: str = "breast_cancer"
    kind: TaskKind = TaskKind.classification
    loss: Loss = Loss.cross_entropy
    metric: str = "balanced_accuracy"


@dataclass(frozen=True)
class PartitionConfig:
    """How simulated clients share one data set (flwr-datasets' partitioners)."""

    name: PartitionName = PartitionName.iid
    alpha: float = 0.5
    classes_per_client: int = 2
    skew: str = "linear"
    min_records: int = 2


@dataclass(frozen=True)
class DataConfig:
    """Which records, and how they are split."""

    name: str = "breast_cancer"
    path: str | None = None
    num_records: int = 400
    image_size: int = 64
    val_fraction: float = 0.15
    test_fraction: float = 0.2
    client_val_fraction: float = 0.1
    group_by: str | None = None
    max_records_per_group: int = 1
    partition: PartitionConfig = field(default_factory=PartitionConfig)


@dataclass(frozen=True)
class ModelConfig:
    """The network: any importable class or function, and its arguments."""

    _target_: str = "dp_fedmed.models.MLP"
    args: dict[str, Any] = field(default_factory=dict)
    fix: bool = True


@dataclass(frozen=True)
class TrainingConfig:
    """A client's local training."""

    optimizer: OptimizerName = OptimizerName.sgd
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 16
    local_epochs: int = 1
    local_steps: int | None = None
    threads: int = 1
    device: str = "auto"


@dataclass(frozen=True)
class FederationConfig:
    """Who takes part, for how long, and what the server does with the updates."""

    num_clients: int = 5
    num_rounds: int = 20
    sampler: SamplerName = SamplerName.fixed
    sample_rate: float = 1.0
    max_participations: int | None = None
    min_clients: int | None = None
    weighting: Weighting = Weighting.examples
    server_optimizer: ServerOptimizerName = ServerOptimizerName.fedavg
    server_lr: float = 1.0
    server_momentum: float = 0.9
    server_beta2: float = 0.99
    server_tau: float = 1e-3
    round_timeout: float | None = None
    connect_timeout: float = 120.0
    evaluate_every: int = 1
    client_evaluate_every: int = 5
    client_evaluate_max: int = 100


@dataclass(frozen=True)
class EngineConfig:
    """Where the clients compute; `workers` is null for the number of cores."""

    name: EngineName = EngineName.local
    workers: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class SamplePrivacyConfig:
    """Record-level privacy: DP-SGD at each client."""

    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    calibration: Calibration = Calibration.per_client
    grad_mode: GradMode = GradMode.auto
    physical_batch_size: int = 256


@dataclass(frozen=True)
class UserPrivacyConfig:
    """Client-level privacy: clipped updates and noise at the server."""

    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    clipping: Clipping = Clipping.fixed
    target_quantile: float = 0.5
    clip_lr: float = 0.2


@dataclass(frozen=True)
class PrivacyConfig:
    """The privacy style and what it guarantees."""

    style: PrivacyStyle = PrivacyStyle.none
    accountant: AccountantName = AccountantName.rdp
    noise_seed: int | None = None
    sample: SamplePrivacyConfig = field(default_factory=SamplePrivacyConfig)
    user: UserPrivacyConfig = field(default_factory=UserPrivacyConfig)


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    seed: int = 0
    run_dir: str = ""

    def to_yaml(self) -> str:
        """The whole tree as YAML, as it stands in a run directory."""
        from omegaconf import OmegaConf

        return OmegaConf.to_yaml(OmegaConf.structured(self))

    def replace(self, **sections: Any) -> Config:
        """A copy with top-level fields replaced, validated again."""
        changed = dataclasses.replace(self, **sections)
        validate(changed)
        return changed


GROUPS = ("task", "privacy", "federation", "engine", "training")
RUN_CONFIG_GROUPS = ("task", "privacy", "federation", "training")  # the engine is Flower's there
GROUPS_FIELD = "groups"
SKEWS = ("linear", "square", "exponential")


def conf_dir() -> Path:
    """The folder of the Hydra groups: in a wheel beside this file, else in the checkout or bundle.

    >>> (conf_dir() / "config.yaml").is_file()
    True
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is missing beside {package.name}: reinstall dp-fedmed")


def default_runs_dir() -> str:
    """Where run directories go without `run_dir`: the checkout's, else the caller's folder."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "checkpoints").is_dir():
        return str(checkout / "checkpoints")
    return str(Path.cwd() / "checkpoints")


def register() -> None:
    """Make the typed tree and our one resolver known to Hydra (safe to call twice)."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store(name="base_config", node=_schema())
    OmegaConf.register_new_resolver("runs_dir", default_runs_dir, replace=True)


def _schema() -> DictConfig:
    """The typed tree as a writable node (OmegaConf makes frozen dataclasses read-only)."""
    from omegaconf import DictConfig, OmegaConf

    def unlock(node: Any) -> None:
        node._set_flag("readonly", None)
        for key in node:
            child = node._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none():
                unlock(child)

    schema: DictConfig = OmegaConf.structured(Config)
    unlock(schema)
    return schema


def compose(overrides: Sequence[str] = ()) -> Config:
    """The validated configuration that these Hydra overrides describe.

    >>> compose(["task=digits", "federation.num_rounds=3"]).federation.num_rounds
    3
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    register()
    checked = check_overrides(overrides)
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            return from_dictconfig(hydra_compose("config", overrides=checked))
    except HydraException as error:
        raise ConfigError(root_message(error)) from error


def from_dictconfig(tree: DictConfig) -> Config:
    """Hydra's tree as our frozen, validated dataclasses."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.to_object(OmegaConf.merge(_schema(), tree))
    except OmegaConfBaseException as error:
        raise ConfigError(root_message(error)) from error
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration tree, got {type(config).__name__}")
    validate(config)
    return config


def from_run_config(run_config: Mapping[str, Any], run_id: int = 0) -> Config:
    """The configuration that Flower's run-config describes.

    The run-config carries the group choices by name, `run-dir`, and `overrides`: one string of
    further Hydra overrides. Without a `run-dir` the run's folder is named by Flower's run id.

    >>> from_run_config({"task": "digits", "overrides": "seed=7 federation.num_rounds=3"}).seed
    7
    """
    chosen = [
        f"{group}={run_config[group]}" for group in RUN_CONFIG_GROUPS if run_config.get(group)
    ]
    try:
        further = shlex.split(str(run_config.get("overrides", "")))
    except ValueError as error:
        raise ConfigError(f"run-config key 'overrides' cannot be split: {error}") from error
    if run_config.get("run-dir"):
        further.append(f"run_dir={_quoted(str(run_config['run-dir']))}")
    elif not any(word.startswith("run_dir=") for word in further):
        # The app's folder is Flower's bundle and its working directory the SuperLink's; both apps
        # know the run's id, and so the same folder.
        runs = Path.home() / "dp_fedmed" / "checkpoints"
        chosen.append(f"run_dir={runs}/flower_{run_id}_${{task.name}}_${{privacy.style}}")
    return compose([*chosen, *further])


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def check_overrides(overrides: Sequence[str], *, own_groups: bool = False) -> list[str]:
    """Refuse an unknown key or group choice with the nearest right one, before Hydra sees it.

    Args:
        overrides: Hydra's words, `key=value` or `group=choice`.
        own_groups: the user has config folders of their own, so that unknown groups and choices are
            left to Hydra.

    Returns:
        The overrides as Hydra is to see them: `model.args` takes any key without Hydra's `++`.

    >>> check_overrides(["seed=1", "model.args.hidden=[64]"])
    ['seed=1', '++model.args.hidden=[64]']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    known = sorted(_keys(Config))
    checked = []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise ConfigError(
                f"cannot read the override {text!r}: write key=value, for example "
                "federation.num_rounds=3"
            ) from error
        key = override.key_or_group
        if key in GROUPS and not override.is_delete():
            if not own_groups:
                _check_choice(key, override.value())
        elif (
            key not in known
            and not key.startswith(("hydra", "model.args."))
            and not (own_groups and "." not in key)
        ):
            raise ConfigError(f"unknown key {key!r}{_nearest(key, [*known, *GROUPS])}")
        checked.append(f"++{text}" if text.startswith(("model.args.", "model.args=")) else text)
    return checked


def _check_choice(group: str, value: Any) -> None:
    available = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    if hasattr(value, "include"):  # glob(…): Hydra looks what there is
        return
    choices = value.list if hasattr(value, "list") else [value]
    for choice in choices:
        name = str(getattr(choice, "text", choice))
        if name not in available:
            raise ConfigError(
                f"{group}={name} is not offered{_nearest(name, available)}; "
                f"choose from {', '.join(available)}"
            )


def _nearest(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not match:
        leaves = {key.rsplit(".", 1)[-1]: key for key in reversed(known)}
        close = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(leaves), n=1, cutoff=0.6)
        match = [leaves[leaf] for leaf in close]
    return f"; did you mean {match[0]!r}?" if match else "; see dp-fedmed run --cfg job"


def _keys(node: type, prefix: str = "") -> Iterable[str]:
    """Every dotted key of the typed tree, inner nodes included."""
    hints = _field_types(node)
    for item in dataclasses.fields(node):
        key = f"{prefix}{item.name}"
        yield key
        if dataclasses.is_dataclass(hints[item.name]):
            yield from _keys(hints[item.name], f"{key}.")


def _field_types(node: type) -> dict[str, Any]:
    from typing import get_type_hints

    return get_type_hints(node)


_NOISE = ("object_type=", "reference_type=", "full_key:")


def root_message(error: BaseException) -> str:
    """The innermost explanation of a Hydra or OmegaConf error, on one line."""
    text = str(error)
    inner = error.__cause__ or error.__context__
    if inner is not None and str(inner) and str(inner) not in text:
        text = f"{text}: {inner}"
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    said = re.sub(r"\s+", " ", "; ".join(kept))
    unknown = re.search(r"Key '(\w+)' (?:is )?not in", said)
    return said + _nearest(unknown[1], sorted(_keys(Config))) if unknown else said


def validate(config: Config) -> None:
    """Refuse values out of range and keys that contradict each other.

    Raises:
        ConfigError: naming the key, the value given and what is allowed.
    """
    _check_finite(config)
    for key, low, high in _RANGES:
        _check_range(config, key, low, high)
    _check_words(config)
    _check_pairs(config)


# (key, smallest, largest); a key whose value is null is not set and not checked.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("seed", 0, 2**63 - 1),
    ("data.num_records", 3, 1e7),
    ("data.image_size", 8, 1024),
    ("data.val_fraction", 0.01, 0.9),
    ("data.test_fraction", 0.01, 0.9),
    ("data.client_val_fraction", 0.0, 0.9),
    ("data.max_records_per_group", 1, 1e6),
    ("data.partition.alpha", 1e-3, 1e6),
    ("data.partition.classes_per_client", 1, 10_000),
    ("data.partition.min_records", 1, 1e7),
    ("training.lr", 1e-12, 1e3),
    ("training.momentum", 0.0, 0.9999),
    ("training.weight_decay", 0.0, 1e3),
    ("training.batch_size", 1, 1e7),
    ("training.local_epochs", 1, 10_000),
    ("training.local_steps", 1, 1e7),
    ("training.threads", 1, 1024),
    ("federation.num_clients", 1, 1e7),
    ("federation.num_rounds", 1, 1e6),
    ("federation.sample_rate", 1e-9, 1.0),
    ("federation.max_participations", 1, 1e6),
    ("federation.min_clients", 1, 1e7),
    ("federation.server_lr", 1e-12, 1e3),
    ("federation.server_momentum", 0.0, 0.9999),
    ("federation.server_beta2", 0.0, 0.999999),
    ("federation.server_tau", 1e-12, 1.0),
    ("federation.round_timeout", 1e-3, 1e7),
    ("federation.connect_timeout", 1.0, 1e6),
    ("federation.evaluate_every", 0, 1e6),
    ("federation.client_evaluate_every", 0, 1e6),
    ("federation.client_evaluate_max", 1, 1e7),
    ("engine.workers", 1, 1024),
    ("privacy.noise_seed", 0, 2**63 - 1),
    *(
        (f"privacy.{level}.{key}", low, high)
        for level in ("sample", "user")
        for key, low, high in (
            ("target_epsilon", 1e-3, 1e4),
            ("noise_multiplier", 1e-2, 1e5),
            ("target_delta", 1e-30, 0.5),
            ("max_grad_norm", 1e-6, 1e6),
        )
    ),
    ("privacy.sample.physical_batch_size", 1, 1e6),
    ("privacy.user.target_quantile", 0.01, 0.99),
    ("privacy.user.clip_lr", 1e-3, 2.0),
)


def get(config: Config, key: str) -> Any:
    """The value at a dotted key, for example ``training.lr``."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _check_finite(config: Config) -> None:
    for key in _keys(Config):
        value = get(config, key)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value} is not a finite number")


def _check_range(config: Config, key: str, low: float, high: float) -> None:
    value = get(config, key)
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{key}={value} is out of range: give a value from {low:g} to {high:g}")


def _check_words(config: Config) -> None:
    if config.data.partition.skew not in SKEWS:
        raise ConfigError(
            f"data.partition.skew={config.data.partition.skew} is not one of {', '.join(SKEWS)}"
        )
    if config.data.group_by not in (None, GROUPS_FIELD):
        raise ConfigError(
            f"data.group_by={config.data.group_by} is not known: use data.group_by={GROUPS_FIELD}, "
            "the ids that a loader puts into Records.groups, or leave it null"
        )
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", config.training.device):
        raise ConfigError(
            f"training.device={config.training.device} is not one of auto, cpu, cuda, cuda:N, mps"
        )
    metrics = METRICS[config.task.kind]
    if config.task.metric not in metrics:
        raise ConfigError(
            f"task.metric={config.task.metric} is not computed for {config.task.kind}: "
            f"choose from {', '.join(metrics)}"
        )
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", config.model._target_):
        raise ConfigError(
            f"model._target_={config.model._target_} is not a dotted import path: "
            "for example my_package.my_module.MyNetwork"
        )


METRICS: dict[TaskKind, tuple[str, ...]] = {
    TaskKind.classification: ("accuracy", "balanced_accuracy", "auroc", "f1", "loss"),
    TaskKind.segmentation: ("dice", "iou", "loss"),
}


def cohort_size(config: Config) -> int:
    """The (expected) number of clients in a round, at least one."""
    federation = config.federation
    if federation.sampler is SamplerName.all:
        return federation.num_clients
    return max(1, round(federation.sample_rate * federation.num_clients))


def _check_pairs(config: Config) -> None:
    federation, data, task = config.federation, config.data, config.task
    if federation.min_clients is not None and federation.min_clients > cohort_size(config):
        raise ConfigError(
            f"federation.min_clients={federation.min_clients} is more than a round asks: "
            f"federation.sample_rate={federation.sample_rate:g} of "
            f"federation.num_clients={federation.num_clients} is {cohort_size(config)}"
        )
    if federation.sampler is SamplerName.all and federation.sample_rate != 1.0:
        raise ConfigError(
            f"federation.sampler=all contradicts federation.sample_rate="
            f"{federation.sample_rate:g}: use federation.sampler=fixed or sample_rate=1"
        )
    if data.val_fraction + data.test_fraction >= 1.0:
        raise ConfigError(
            f"data.val_fraction={data.val_fraction:g} and data.test_fraction="
            f"{data.test_fraction:g} leave nothing to train on: their sum must be below 1"
        )
    if task.kind is TaskKind.classification and task.loss is not Loss.cross_entropy:
        raise ConfigError(
            f"task.loss={task.loss} is a segmentation loss, but task.kind={task.kind}: "
            "use task.loss=cross_entropy"
        )
    _check_privacy(config)
    if (
        config.engine.name is EngineName.local
        and config.engine.workers == 1
        and federation.round_timeout is not None
    ):
        raise ConfigError(
            f"federation.round_timeout={federation.round_timeout:g} needs worker processes, but "
            "engine.workers=1 computes in this process: use engine.workers=2 or more"
        )
    if config.engine.address is not None and config.engine.name is not EngineName.ray:
        raise ConfigError(
            f"engine.address={config.engine.address} is a Ray cluster's, but "
            f"engine.name={config.engine.name}: use engine=ray"
        )


def _check_privacy(config: Config) -> None:
    """The four styles, and what contradicts them (DESIGN, section 4)."""
    style, federation = config.privacy.style, config.federation
    if style.protects_records:
        _check_noise_source("sample", config.privacy.sample)
    if style.protects_clients:
        _check_noise_source("user", config.privacy.user)
        if federation.min_clients is not None:
            raise ConfigError(
                f"federation.min_clients={federation.min_clients} contradicts privacy.style="
                f"{style}: how many took part is secret there and may decide nothing; leave it null"
            )
        if federation.weighting is not Weighting.uniform:
            raise ConfigError(
                f"federation.weighting={federation.weighting} contradicts privacy.style={style}: "
                "weights by examples break the bound on one client; use "
                "federation.weighting=uniform"
            )
    if not style.protects_records and federation.max_participations is not None:
        raise ConfigError(
            f"federation.max_participations={federation.max_participations} limits a record-level "
            f"budget, but privacy.style={style} has none: use privacy=sample or privacy=hybrid"
        )


def _check_noise_source(level: str, settings: SamplePrivacyConfig | UserPrivacyConfig) -> None:
    given = [settings.target_epsilon is not None, settings.noise_multiplier is not None]
    if not any(given):
        raise ConfigError(
            f"privacy.{level} needs privacy.{level}.target_epsilon (for example 3) or "
            f"privacy.{level}.noise_multiplier (for example 1.0)"
        )
