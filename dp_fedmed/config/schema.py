"""The typed configuration tree: every setting's type, default, meaning, range and role in resume.

A new setting is one field here. Its range is checked, `dp-fedmed run --help` and the docs list it,
and `resume` treats it by its role, all from what the field declares.
"""

# ruff: noqa: RUF009  (setting and section make fields)

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from dp_fedmed.config.choices import (
    AccountantName,
    Calibration,
    Clipping,
    EngineName,
    GradMode,
    Loss,
    MechanismName,
    NoisePlace,
    OptimizerName,
    PartitionName,
    PrivacyStyle,
    SamplerName,
    ServerOptimizerName,
    TaskKind,
    Topology,
    Weighting,
)
from dp_fedmed.config.setting import FREE, NEVER, ONCE, STEERS, section, setting


@dataclass(frozen=True)
class TaskConfig:
    """What is learned and how a model is judged."""

    name: str = setting(
        "breast_cancer", "as in `task=`; names the run's directory and tables", NEVER
    )
    kind: TaskKind = setting(TaskKind.classification, "what is learned", NEVER)
    loss: Loss = setting(Loss.cross_entropy, "mean of per-record losses; unused by anomaly tasks")
    metric: str = setting(
        "balanced_accuracy", "chooses the model in style `none`, and comes first in tables", FREE
    )


@dataclass(frozen=True)
class PartitionConfig:
    """How simulated clients share one data set (flwr-datasets' partitioners)."""

    name: PartitionName = setting(
        PartitionName.iid,
        "the partitioner; `natural` keeps sites together (`Records.site`), the others patients",
    )
    alpha: float = setting(0.5, "of `dirichlet`: small is uneven", within=(1e-3, 1e6))
    classes_per_client: int = setting(2, "of `pathological`", within=(1, 10_000))
    skew: str = setting("linear", "of `size_skewed`: linear, square or exponential")
    min_records: int = setting(2, "fewest records of a client", within=(1, 1e7))


@dataclass(frozen=True)
class DataConfig:
    """Which records, and how they are split."""

    name: str = setting(
        "breast_cancer", "an embedded set, or the import path of a function that returns a DataSet"
    )
    id: str | None = setting(None, "names the data in a shared data_ledger", ONCE)
    path: str | None = setting(  # the records themselves are compared, not where they are
        None, "file or folder of sets that are neither embedded nor generated", FREE
    )
    num_records: int = setting(400, "records that a generator makes", within=(3, 1e7))
    image_size: int = setting(64, "side in pixels of made or resized images", within=(8, 1024))
    val_fraction: float = setting(
        0.15, "share of all records for the server's validation", within=(0.01, 0.9)
    )
    test_fraction: float = setting(
        0.2, "share of all records for the server's one test", within=(0.01, 0.9)
    )
    client_val_fraction: float = setting(
        0.1, "share of a client's records for its own validation", within=(0.0, 0.9)
    )
    group_by: str | None = setting(
        None, "`patient` where several records may be one patient's (`Records.patient`)"
    )
    max_records_per_group: int = setting(1, "most records used per patient", within=(1, 1e6))
    partition: PartitionConfig = section(PartitionConfig, NEVER)


@dataclass(frozen=True)
class ModelConfig:
    """The network: any importable class or function, and its arguments."""

    _target_: str = setting("dp_fedmed.models.MLP", "import path")
    args: dict[str, Any] = setting(dict, "keyword arguments; any keys")
    fix: bool = setting(True, "replace layers that mix records; refuse them if false")


@dataclass(frozen=True)
class AnomalyConfig:
    """How anomaly tasks see images, and what they keep of the normal ones."""

    mechanism: MechanismName = setting(
        MechanismName.dp_gaussian, "what is released in private styles"
    )
    backbone: str = setting("filters", "frozen features; see `dp_fedmed.models.backbones`")
    weights: str | None = setting(None, "a file, `random`, or null for torch hub's")
    layers: list[str] | None = setting(None, "layers of the backbone; null for its defaults")
    dimension: int | None = setting(
        None, "of a mapped patch; null for what suits the mechanism", within=(1, 4096)
    )
    grid: int | None = setting(
        None, "side of the grid of patches; null for the largest layer's", within=(1, 512)
    )
    coreset_size: int | None = setting(
        1000,
        "rows of the memory bank (style `none`), or most rows of `noisy_rows`",
        within=(2, 1e6),
    )
    coreset_ratio: float | None = setting(
        None,
        "the same as a share of all patches of all clients; one of the two is null",
        within=(1e-6, 1.0),
    )
    rows_per_image: int = setting(1, "patches per image in `noisy_rows`", within=(1, 1e5))
    neighbours: int = setting(
        9, "bank rows that weigh a score (style `none`); 0 leaves the weight out", within=(0, 1000)
    )


@dataclass(frozen=True)
class TrainingConfig:
    """A client's local training."""

    optimizer: OptimizerName = setting(OptimizerName.sgd, "optimizer of the local steps", STEERS)
    lr: float = setting(0.1, "learning rate", STEERS, within=(1e-12, 1e3))
    momentum: float = setting(0.0, "of `sgd`", STEERS, within=(0.0, 0.9999))
    weight_decay: float = setting(0.0, "of all optimizers", STEERS, within=(0.0, 1e3))
    batch_size: int = setting(
        16, "records per step; the expected number where batches are Poisson draws", within=(1, 1e7)
    )
    local_epochs: int = setting(1, "passes over the records per round", within=(1, 10_000))
    local_steps: int | None = setting(None, "steps per round instead of passes", within=(1, 1e7))
    threads: int = setting(
        1, "torch's threads, at every client on every engine", STEERS, within=(1, 1024)
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1 or mps", STEERS)


@dataclass(frozen=True)
class FederationConfig:
    """Who takes part, for how long, and what the server does with the updates."""

    topology: Topology = setting(
        Topology.federated,
        "a federation, or a baseline: all records at one site, or each client alone",
        NEVER,
    )
    num_clients: int = setting(5, "how many there are", NEVER, within=(1, 1e7), announced=True)
    num_rounds: int = setting(20, "rounds of the whole run", FREE, within=(1, 1e6))
    sampler: SamplerName = setting(SamplerName.fixed, "draws who takes part in a round")
    sample_rate: float = setting(1.0, "share of the clients that a round asks", within=(1e-9, 1.0))
    max_participations: int | None = setting(
        None, "rounds that one client may train in; null for all", within=(1, 1e6)
    )
    min_clients: int | None = setting(
        None, "fewer usable answers end the run; refused where it would leak", FREE, within=(1, 1e7)
    )
    weighting: Weighting = setting(
        Weighting.examples, "of the answers; client-level privacy needs `uniform`"
    )
    server_optimizer: ServerOptimizerName = setting(
        ServerOptimizerName.fedavg, "how the average is applied", STEERS
    )
    server_lr: float = setting(1.0, "step of the server's optimizer", STEERS, within=(1e-12, 1e3))
    server_momentum: float = setting(
        0.9, "of `fedavgm`, and beta1 of `fedadam`", STEERS, within=(0.0, 0.9999)
    )
    server_beta2: float = setting(0.99, "of `fedadam`", STEERS, within=(0.0, 0.999999))
    server_tau: float = setting(1e-3, "adaptivity of `fedadam`", STEERS, within=(1e-12, 1.0))
    round_timeout: float | None = setting(
        None, "seconds until a client counts as lost; null for never", FREE, within=(1e-3, 1e7)
    )
    connect_timeout: float = setting(
        120.0, "seconds to wait for deployed clients", FREE, within=(1.0, 1e6)
    )
    evaluate_every: int = setting(
        1, "rounds between the server's validations; 0 for never", FREE, within=(0, 1e6)
    )
    client_evaluate_every: int = setting(
        5, "rounds between the clients' own validations; 0 for never", FREE, within=(0, 1e6)
    )
    client_evaluate_max: int = setting(
        100, "most clients that are asked to evaluate", FREE, within=(1, 1e7)
    )
    secure_aggregation: bool = setting(
        False, "hide single answers from the server; part of `privacy.noise=shares`", announced=True
    )
    max_dropouts: int | None = setting(
        None,
        "clients that secure aggregation can lose per round; null for a fifth",
        within=(0, 1e6),
        announced=True,
    )
    max_colluding: int = setting(
        1, "clients that may collude with the server", within=(0, 1e6), announced=True
    )


@dataclass(frozen=True)
class EngineConfig:
    """Where the clients compute."""

    name: EngineName = setting(
        EngineName.local, "`local` or `ray`; Flower's own runtimes are chosen by `flwr run`"
    )
    workers: int | None = setting(
        None, "processes that compute; null for the number of cores", within=(1, 1024)
    )
    address: str | None = setting(None, "of a running Ray cluster")


@dataclass(frozen=True)
class SamplePrivacyConfig:
    """Record-level privacy: DP-SGD at each client."""

    target_epsilon: float | None = setting(
        None, "ε that the whole run may cost a record; calibrates the noise", within=(1e-3, 1e4)
    )
    noise_multiplier: float | None = setting(
        None, "σ as given instead, or the least that a client accepts", within=(1e-2, 1e5)
    )
    target_delta: float | None = setting(
        None, "δ; null for 1e-5, or less where there are many records", within=(1e-30, 0.5)
    )
    max_grad_norm: float = setting(
        1.0, "C that each record's gradient is clipped to", within=(1e-6, 1e6)
    )
    calibration: Calibration = setting(
        Calibration.per_client, "each client's own σ, or the largest for all"
    )
    grad_mode: GradMode = setting(
        GradMode.auto, "how per-record gradients are computed", STEERS, announced=True
    )
    physical_batch_size: int = setting(256, "records in memory at once", STEERS, within=(1, 1e6))


@dataclass(frozen=True)
class UserPrivacyConfig:
    """Client-level privacy: clipped updates and noise at the server."""

    target_epsilon: float | None = setting(
        None, "ε that the whole run may cost a client; calibrates the noise", within=(1e-3, 1e4)
    )
    noise_multiplier: float | None = setting(None, "σ as given instead", within=(1e-2, 1e5))
    target_delta: float | None = setting(
        None, "δ; null for 1e-5, or less where there are many clients", within=(1e-30, 0.5)
    )
    max_grad_norm: float = setting(
        1.0, "C that each update is clipped to, at first", within=(1e-6, 1e6)
    )
    clipping: Clipping = setting(
        Clipping.fixed, "fixed, or following a quantile of the norms with noise of its own"
    )
    target_quantile: float = setting(
        0.5, "quantile of the norms that `adaptive` follows", within=(0.01, 0.99)
    )
    clip_lr: float = setting(0.2, "how fast `adaptive` follows", within=(1e-3, 2.0))


@dataclass(frozen=True)
class PrivacyConfig:
    """The privacy style and what it guarantees."""

    style: PrivacyStyle = setting(PrivacyStyle.none, "as in `privacy=`", NEVER)
    accountant: AccountantName = setting(
        AccountantName.tight, "calibrates, enforces and reports: tight, rdp or pld"
    )
    noise: NoisePlace | None = setting(
        None,
        "who draws the noise: each client its own (client), all clients a share each, which "
        "secure aggregation adds up (shares), or the server, which sees the answers (server); null "
        "for client where records are protected and server for whole clients",
        NEVER,
    )
    noise_seed: int | None = setting(
        None, "noise from a public seed, for debugging: protects nobody", within=(0, 2**63 - 1)
    )
    sample: SamplePrivacyConfig = section(SamplePrivacyConfig)
    user: UserPrivacyConfig = section(UserPrivacyConfig)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run's state is written, and how many are kept besides the best."""

    every: int = setting(1, "rounds between checkpoints", within=(1, 1e6))
    keep: int = setting(3, "how many of the last are kept", within=(1, 1e6))


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    task: TaskConfig = section(TaskConfig)
    data: DataConfig = section(DataConfig, NEVER)
    model: ModelConfig = section(ModelConfig, NEVER)
    anomaly: AnomalyConfig = section(AnomalyConfig, NEVER)
    training: TrainingConfig = section(TrainingConfig)
    federation: FederationConfig = section(FederationConfig)
    engine: EngineConfig = section(EngineConfig, FREE)
    privacy: PrivacyConfig = section(PrivacyConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig, FREE)
    allow_code: list[str] = setting(  # the code that is named is in `model` and `data`
        list, "packages whose code model._target_ and data.name may name", FREE
    )
    seed: int = setting(0, "seed of everything that is not secret", NEVER, within=(0, 2**63 - 1))
    run_dir: str = setting("", "absolute path of the run's directory", FREE)
    data_ledger: str | None = setting(
        None, "absolute path of a ledger that all runs on the same data share", ONCE
    )
    resume: str | None = setting(
        None, "resume the run at run_dir: `last`, `best` or `round:3`", FREE
    )
    new_phase: bool = setting(
        False, "resume with other privacy settings, at a cost that is added", FREE
    )

    @property
    def record_noise_at_server(self) -> bool:
        """Whether records are protected by the server's noise alone: it sees exact sums then."""
        return self.privacy.style.protects_records and self.privacy.noise is NoisePlace.server

    @property
    def sums_records(self) -> bool:
        """Whether one noise protects the records of all clients: their sums are added up first."""
        one_noise = self.privacy.noise in (NoisePlace.shares, NoisePlace.server)
        return self.privacy.style.protects_records and one_noise

    @property
    def client_noise_at_server(self) -> bool:
        """Whether the server noises whole clients: it sees their answers then."""
        at_server = self.privacy.noise in (None, NoisePlace.server)
        return self.privacy.style.protects_clients and at_server

    @property
    def masks(self) -> bool:
        """Whether secure aggregation shows the server the sum of a round's answers only."""
        return self.federation.secure_aggregation or self.noised_by == "shares"

    @property
    def noised_by(self) -> str:
        """Who noises what clients answer: `server`, `client`, all clients (`shares`), or nobody."""
        style = self.privacy.style
        if style is PrivacyStyle.none:
            return "nobody"
        if self.privacy.noise is not None:
            return str(self.privacy.noise)
        return "client" if style.protects_records else "server"

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
