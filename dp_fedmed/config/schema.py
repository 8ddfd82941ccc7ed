"""The typed configuration tree: frozen dataclasses, and how to walk them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from dp_fedmed.config.choices import (
    AccountantName,
    Calibration,
    Clipping,
    EngineName,
    GradMode,
    Loss,
    MechanismName,
    OptimizerName,
    PartitionName,
    PrivacyStyle,
    SamplerName,
    ServerOptimizerName,
    TaskKind,
    Topology,
    Weighting,
)


@dataclass(frozen=True)
class TaskConfig:
    """What is learned and how a model is judged.

    Attributes:
        name: as in `task=`; names the run's directory and its tables.
        kind: what is learned.
        loss: a mean of per-record losses; anomaly tasks have none.
        metric: chooses the model in style `none`, and stands first in tables.
    """

    name: str = "breast_cancer"
    kind: TaskKind = TaskKind.classification
    loss: Loss = Loss.cross_entropy
    metric: str = "balanced_accuracy"


@dataclass(frozen=True)
class PartitionConfig:
    """How simulated clients share one data set (flwr-datasets' partitioners).

    Attributes:
        name: the partitioner; `natural` keeps sites together (`Records.site`), the others patients.
        alpha: of `dirichlet`: small is uneven.
        classes_per_client: of `pathological`.
        skew: of `size_skewed`: linear, square or exponential.
        min_records: every client has at least so many, or the run is refused.
    """

    name: PartitionName = PartitionName.iid
    alpha: float = 0.5
    classes_per_client: int = 2
    skew: str = "linear"
    min_records: int = 2


@dataclass(frozen=True)
class DataConfig:
    """Which records, and how they are split.

    Attributes:
        name: an embedded set, or the import path of a function that returns a `DataSet`.
        id: names the data in a shared `data_ledger`.
        path: the file or folder of sets that are neither embedded nor generated.
        num_records: how many a generator makes.
        image_size: side in pixels that images are made or resized to.
        val_fraction: of all records, for the server's validation.
        test_fraction: of all records, for the server's one test.
        client_val_fraction: of a client's records, for its own validation.
        group_by: `patient` where several records may be one patient's (`Records.patient`).
        max_records_per_group: so many of a patient's records are used, at most.
        partition: who holds which records in a simulation.
    """

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
    """The network: any importable class or function, and its arguments.

    Attributes:
        _target_: import path.
        args: its keyword arguments; any keys.
        fix: replace layers that mix records; refuse them if false.
    """

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
        coreset_size: rows of the memory bank (style `none`), or the most of `noisy_rows`.
        coreset_ratio: the same as a share of all patches of all clients; one of the two is null.
        rows_per_image: patches of an image that `noisy_rows` releases.
        neighbours: bank rows that weigh a score (style `none`); 0 leaves the weight out.
        server_trusted: in style `sample`, noise is added once, by the server; else by each client,
            as it always is with `noisy_rows`.
    """

    mechanism: MechanismName = MechanismName.dp_gaussian
    backbone: str = "filters"
    weights: str | None = None
    layers: list[str] | None = None
    dimension: int | None = None
    grid: int | None = None
    coreset_size: int | None = 1000
    coreset_ratio: float | None = None
    rows_per_image: int = 1
    neighbours: int = 9
    server_trusted: bool = True


@dataclass(frozen=True)
class TrainingConfig:
    """A client's local training.

    Attributes:
        optimizer: of the local steps.
        lr: its learning rate.
        momentum: of `sgd`.
        weight_decay: of all optimizers.
        batch_size: records a step; the expected number where batches are Poisson draws.
        local_epochs: passes over the records a round.
        local_steps: steps a round instead of passes.
        threads: of torch, at every client on every engine.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
    """

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
    """Who takes part, for how long, and what the server does with the updates.

    Attributes:
        topology: a federation, or a baseline: all records at one site, or each client alone.
        num_clients: how many there are.
        num_rounds: rounds of the whole run.
        sampler: who takes part in a round.
        sample_rate: share of the clients that a round asks.
        max_participations: rounds that one client may train in; null for all.
        min_clients: fewer usable answers end the run; refused where it would leak.
        weighting: of the answers; client-level privacy needs `uniform`.
        server_optimizer: how the average is applied.
        server_lr: its step.
        server_momentum: of `fedavgm`, and beta1 of `fedadam`.
        server_beta2: of `fedadam`.
        server_tau: of `fedadam`: its adaptivity.
        round_timeout: seconds until a client counts as lost; null for never.
        connect_timeout: seconds to wait for deployed clients.
        evaluate_every: rounds between the server's validations; 0 for never.
        client_evaluate_every: rounds between the clients' own; 0 for never.
        client_evaluate_max: clients that are asked to evaluate, at most.
    """

    topology: Topology = Topology.federated
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
    """Where the clients compute; `workers` is null for the number of cores.

    Attributes:
        name: `local` or `ray`; Flower's own runtimes are chosen by `flwr run`.
        workers: processes that compute.
        address: of a running Ray cluster.
    """

    name: EngineName = EngineName.local
    workers: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class SamplePrivacyConfig:
    """Record-level privacy: DP-SGD at each client.

    Attributes:
        target_epsilon: ε that the whole run may cost a record; calibrates the noise.
        noise_multiplier: σ as given instead, or the least that a client accepts.
        target_delta: δ; null for 1e-5, or less where there are many records.
        max_grad_norm: C that each record's gradient is clipped to.
        calibration: each client's own σ, or the largest for all.
        grad_mode: how per-record gradients are computed.
        physical_batch_size: records that are in memory at once.
    """

    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    calibration: Calibration = Calibration.per_client
    grad_mode: GradMode = GradMode.auto
    physical_batch_size: int = 256


@dataclass(frozen=True)
class UserPrivacyConfig:
    """Client-level privacy: clipped updates and noise at the server.

    Attributes:
        target_epsilon: ε that the whole run may cost a client; calibrates the noise.
        noise_multiplier: σ as given instead.
        target_delta: δ; null for 1e-5, or less where there are many clients.
        max_grad_norm: C that each update is clipped to, at first.
        clipping: fixed, or following a quantile of the norms with noise of its own.
        target_quantile: of the norms, for `adaptive`.
        clip_lr: how fast `adaptive` follows.
    """

    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    clipping: Clipping = Clipping.fixed
    target_quantile: float = 0.5
    clip_lr: float = 0.2


@dataclass(frozen=True)
class PrivacyConfig:
    """The privacy style and what it guarantees.

    Attributes:
        style: as in `privacy=`.
        accountant: calibrates, enforces and reports: tight, rdp or pld.
        noise_seed: noise from a public seed, for debugging: protects nobody, and says so.
        sample: record level.
        user: client level.
    """

    style: PrivacyStyle = PrivacyStyle.none
    accountant: AccountantName = AccountantName.tight
    noise_seed: int | None = None
    sample: SamplePrivacyConfig = field(default_factory=SamplePrivacyConfig)
    user: UserPrivacyConfig = field(default_factory=UserPrivacyConfig)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run's state is written, and how many are kept besides the best.

    Attributes:
        every: rounds between checkpoints.
        keep: how many of the last are kept.
    """

    every: int = 1
    keep: int = 3


@dataclass(frozen=True)
class Config:
    """One run, whole.

    Attributes:
        task: what is learned.
        data: from which records.
        model: by which network.
        anomaly: for anomaly tasks: what they keep of normal images.
        training: at a client.
        federation: between clients and server.
        engine: on which processes.
        privacy: with which guarantee.
        checkpoint: written how often.
        seed: of everything that is not secret.
        allow_code: packages whose code `model._target_` and `data.name` may name.
        run_dir: absolute path of the run's directory.
        data_ledger: absolute path of a ledger that all runs on the same data share.
        resume: `last`, `best` or `round:3`: go on with the run at `run_dir`.
        new_phase: go on with other privacy settings, at a cost that is added.
    """

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
        alone = self.federation.topology is Topology.local_only  # then nobody adds anything up
        is_sum = self.task.kind is TaskKind.anomaly and not self.releases_rows
        return is_sum and is_sample and self.anomaly.server_trusted and not alone

    @property
    def num_sites(self) -> int:
        """How many train: one where all clients' records are pooled."""
        pooled = self.federation.topology is Topology.centralized
        return 1 if pooled else self.federation.num_clients

    @property
    def releases_rows(self) -> bool:
        """Whether single rows are released, and not sums of all records' vectors."""
        is_private = self.privacy.style is not PrivacyStyle.none
        is_rows = self.anomaly.mechanism is MechanismName.noisy_rows
        return self.task.kind is TaskKind.anomaly and is_private and is_rows

    @property
    def asks_for_sizes(self) -> bool:
        """Whether the server must know how many records each client has before it begins."""
        is_ratio = self.task.kind is TaskKind.anomaly and self.anomaly.coreset_ratio is not None
        return self.privacy.style.protects_records or is_ratio

    def to_yaml(self) -> str:
        """The whole tree as YAML, as it stands in a run directory."""
        return self._yaml

    @functools.cached_property
    def _yaml(self) -> str:
        from omegaconf import OmegaConf

        return OmegaConf.to_yaml(OmegaConf.structured(self))

    def replace(self, **sections: Any) -> Config:
        """A copy with top-level fields replaced, validated again."""
        from dp_fedmed.config.checks import validate

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


@functools.cache
def leaf_keys() -> tuple[str, ...]:
    """Every dotted key of the typed tree that holds a value of its own."""
    keys = list(tree_keys(Config))
    return tuple(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))


def get(config: Config, key: str) -> Any:
    """The value at a dotted key, for example ``training.lr``."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
