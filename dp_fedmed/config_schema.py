"""The typed configuration tree: enumerations, frozen dataclasses, and how to walk them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_type_hints


class ConfigError(ValueError):
    """A setting that cannot be right; it names the key, the value and a value that works."""


class TaskKind(StrEnum):
    """What is learned."""

    classification = "classification"
    segmentation = "segmentation"
    anomaly = "anomaly"


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


class MechanismName(StrEnum):
    """Which statistic of normal images a private anomaly task releases."""

    dp_gaussian = "dp_gaussian"
    dp_prototypes = "dp_prototypes"


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
    id: str | None = None
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
class AnomalyConfig:
    """How anomaly tasks see images, and what they keep of the normal ones.

    Attributes:
        mechanism: what is released in private styles.
        backbone: frozen features; see `dp_fedmed.models.backbones`.
        weights: a file, `random`, or null for torch hub's.
        layers: of the backbone; null for its defaults.
        dimension: of a mapped patch; null for what suits the mechanism.
        grid: side of the grid of patches; null for the largest layer's.
        coreset_size: rows of the memory bank (style `none`).
        neighbours: bank rows that weigh a score (style `none`); 0 leaves the weight out.
        server_trusted: in style `sample`, noise is added once, by the server; else by each client.
    """

    mechanism: MechanismName = MechanismName.dp_gaussian
    backbone: str = "filters"
    weights: str | None = None
    layers: list[str] | None = None
    dimension: int | None = None
    grid: int | None = None
    coreset_size: int = 1000
    neighbours: int = 9
    server_trusted: bool = True


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
class CheckpointConfig:
    """How often a run's state is written, and how many are kept besides the best."""

    every: int = 1
    keep: int = 3


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    anomaly: AnomalyConfig = field(default_factory=AnomalyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    allow_code: list[str] = field(default_factory=list)
    seed: int = 0
    run_dir: str = ""
    data_ledger: str | None = None
    resume: str | None = None
    new_phase: bool = False

    @property
    def record_noise_at_server(self) -> bool:
        """Whether records are protected by the server's noise alone: it sees exact sums then."""
        is_sample = self.privacy.style is PrivacyStyle.sample
        return self.task.kind is TaskKind.anomaly and is_sample and self.anomaly.server_trusted

    def to_yaml(self) -> str:
        """The whole tree as YAML, as it stands in a run directory."""
        from omegaconf import OmegaConf

        return OmegaConf.to_yaml(OmegaConf.structured(self))

    def replace(self, **sections: Any) -> Config:
        """A copy with top-level fields replaced, validated again."""
        from dp_fedmed.config_checks import validate

        changed = dataclasses.replace(self, **sections)
        validate(changed)
        return changed


def tree_keys(node: type, prefix: str = "") -> Iterable[str]:
    """Every dotted key of the typed tree, inner nodes included."""
    hints = get_type_hints(node)
    for item in dataclasses.fields(node):
        key = f"{prefix}{item.name}"
        yield key
        if dataclasses.is_dataclass(hints[item.name]):
            yield from tree_keys(hints[item.name], f"{key}.")


def leaf_keys(node: type = Config) -> list[str]:
    """Every dotted key of the typed tree that holds a value of its own."""
    keys = list(tree_keys(node))
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


def get(config: Config, key: str) -> Any:
    """The value at a dotted key, for example ``training.lr``."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
