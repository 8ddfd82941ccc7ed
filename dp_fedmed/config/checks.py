"""What a configuration may hold: ranges, words, and keys that contradict each other."""

from __future__ import annotations

import math
import re

from dp_fedmed.config.choices import (
    Clipping,
    EngineName,
    Loss,
    MechanismName,
    PrivacyStyle,
    SamplerName,
    ServerOptimizerName,
    TaskKind,
    Topology,
    Weighting,
)
from dp_fedmed.config.named_code import MODULE, refuse_code
from dp_fedmed.config.own_data import refuse_unread_path
from dp_fedmed.config.schema import Config, SamplePrivacyConfig, UserPrivacyConfig
from dp_fedmed.config.tree import get, settings
from dp_fedmed.errors import ConfigError

RESUME = re.compile(r"last|best|round:\d+")
SKEWS = ("linear", "square", "exponential")


def validate(config: Config) -> None:
    """Refuse values out of range and keys that contradict each other.

    Raises:
        ConfigError: naming the key, the value given and what is allowed.
    """
    _check_numbers(config)
    _check_words(config)
    _check_pairs(config)


def _check_numbers(config: Config) -> None:
    for key, setting in settings().items():
        value = get(config, key)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value} is not a finite number")
        if value is None or setting.within is None:
            continue
        low, high = setting.within
        if not low <= value <= high:
            raise ConfigError(
                f"{key}={value} is out of range: give a value from {low:g} to {high:g}"
            )


def _check_words(config: Config) -> None:
    if config.data.partition.skew not in SKEWS:
        raise ConfigError(
            f"data.partition.skew={config.data.partition.skew} is not one of {', '.join(SKEWS)}"
        )
    if config.data.group_by not in (None, "patient"):
        raise ConfigError(
            f"data.group_by={config.data.group_by} is not known: use data.group_by=patient, "
            "the ids that a loader puts into Records.patient, or leave it null"
        )
    refuse_unread_path(config.data)
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
    if config.resume is not None and not RESUME.fullmatch(config.resume):
        raise ConfigError(
            f"resume={config.resume} is not known: use resume=last, resume=best, resume=round:3, "
            "or the path of a run directory"
        )
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", config.model._target_):
        raise ConfigError(
            f"model._target_={config.model._target_} is not a dotted import path: "
            "for example my_package.my_module.MyNetwork"
        )
    _check_code(config)


def _check_code(config: Config) -> None:
    """Settings that name code may name declared modules, and what the user allows."""
    for module in config.allow_code:
        if not MODULE.fullmatch(module):
            raise ConfigError(
                f"allow_code={config.allow_code} holds {module!r}, which is not a package or "
                "module: for example allow_code=[my_package]"
            )
    refuse_code("model._target_", config.model._target_, config.allow_code)
    if "." in config.data.name:
        refuse_code("data.name", config.data.name, config.allow_code)


METRICS: dict[TaskKind, tuple[str, ...]] = {
    TaskKind.classification: ("accuracy", "balanced_accuracy", "auroc", "f1", "loss"),
    TaskKind.segmentation: ("dice", "iou", "loss"),
    TaskKind.regression: ("rmse", "mae", "r2", "loss"),
    TaskKind.anomaly: (
        *("image_auroc", "pixel_auroc"),
        *(f"aupro_{limit}" for limit in ("0.01", "0.05", "0.1", "0.3", "1")),
    ),
}
LOSSES: dict[TaskKind, tuple[Loss, ...]] = {
    TaskKind.classification: (Loss.cross_entropy,),
    TaskKind.segmentation: (Loss.dice_ce, Loss.soft_dice, Loss.cross_entropy),
    TaskKind.regression: (Loss.mse, Loss.huber, Loss.mae),
}
BACKBONES = ("filters", "mobilenet_v2", "resnet18", "wide_resnet50_2", "tiny")
#: Releases of each private mechanism, each a round.
RELEASES = {
    MechanismName.dp_gaussian: 2,
    MechanismName.dp_prototypes: 2,
    MechanismName.noisy_rows: 1,
}


def num_releases(mechanism: str) -> int:
    """Rounds that a private anomaly mechanism takes; 2 for a name that will be refused.

    >>> num_releases("dp_gaussian"), num_releases("noisy_rows")
    (2, 1)
    """
    known = {str(name): count for name, count in RELEASES.items()}
    return known.get(str(mechanism), 2)


def cohort_size(config: Config) -> int:
    """The (expected) number of clients in a round, at least one."""
    federation = config.federation
    if federation.sampler is SamplerName.all:
        return config.num_sites
    return max(1, round(federation.sample_rate * config.num_sites))


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
    losses = LOSSES.get(task.kind)
    if losses is not None and task.loss not in losses:
        raise ConfigError(
            f"task.loss={task.loss} does not fit task.kind={task.kind}: use "
            f"{' or '.join(f'task.loss={loss}' for loss in losses)}"
        )
    _check_topology(config)
    _check_privacy(config)
    if task.kind is TaskKind.anomaly:
        _check_anomaly(config)
    _check_data_ledger(config)
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


def _check_topology(config: Config) -> None:
    """What the two baselines cannot have: clients that hide among each other, or a draw of one."""
    federation, style = config.federation, config.privacy.style
    if federation.topology is Topology.federated:
        return
    reasons = {
        Topology.centralized: "all records are at one site, so there is no client to hide",
        Topology.local_only: "a client that trains alone cannot hide among others",
    }
    if style.protects_clients:
        raise ConfigError(
            f"privacy.style={style} contradicts federation.topology={federation.topology}: "
            f"{reasons[federation.topology]}; use privacy=none or privacy=sample"
        )
    if federation.topology is Topology.centralized and federation.sample_rate != 1.0:
        raise ConfigError(
            f"federation.sample_rate={federation.sample_rate:g} contradicts federation.topology="
            "centralized: there is one site, and it trains in every round; use "
            "federation.sample_rate=1"
        )
    if config.task.kind is TaskKind.anomaly and federation.sample_rate != 1.0:
        raise ConfigError(
            f"federation.sample_rate={federation.sample_rate:g} contradicts federation.topology="
            f"{federation.topology}: a client that is left out of a release has no detector of its "
            "own; use federation.sample_rate=1"
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


def _check_anomaly(config: Config) -> None:
    """An anomaly task computes one bank or one statistic: nothing is trained."""
    federation, privacy = config.federation, config.privacy
    if config.anomaly.backbone not in BACKBONES:
        raise ConfigError(
            f"anomaly.backbone={config.anomaly.backbone} is not known: choose from "
            f"{', '.join(BACKBONES)}"
        )
    _check_coreset(config)
    is_private = privacy.style is not PrivacyStyle.none
    rounds = RELEASES[config.anomaly.mechanism] if is_private else 1
    made = f"anomaly.mechanism={config.anomaly.mechanism}" if is_private else "a memory bank"
    if federation.num_rounds != rounds:
        raise ConfigError(
            f"federation.num_rounds={federation.num_rounds} does not fit: with privacy.style="
            f"{privacy.style}, {made} takes federation.num_rounds={rounds}"
        )
    most = federation.max_participations
    if most is not None and most < rounds:
        raise ConfigError(
            f"federation.max_participations={most} leaves everybody out of the last release: use "
            f"federation.max_participations={rounds} or null"
        )
    if federation.server_optimizer is not ServerOptimizerName.fedavg or federation.server_lr != 1.0:
        raise ConfigError(
            f"federation.server_optimizer={federation.server_optimizer} with federation.server_lr="
            f"{federation.server_lr:g} is for models that are trained: an anomaly task takes "
            "federation.server_optimizer=fedavg and federation.server_lr=1"
        )
    if privacy.style.protects_records and privacy.sample.max_grad_norm != 1.0:
        raise ConfigError(
            f"privacy.sample.max_grad_norm={privacy.sample.max_grad_norm:g} does not fit: an "
            "image's vector has norm at most 1; use privacy.sample.max_grad_norm=1"
        )
    if privacy.style.protects_clients and privacy.user.clipping is not Clipping.fixed:
        raise ConfigError(
            f"privacy.user.clipping={privacy.user.clipping} does not fit: a client's vector has "
            "norm at most 1 as it is; use privacy.user.clipping=fixed"
        )


def _check_coreset(config: Config) -> None:
    """One size of the bank; and where rows are released, a guarantee that exists for them."""
    size, ratio = config.anomaly.coreset_size, config.anomaly.coreset_ratio
    has_bank = config.privacy.style is PrivacyStyle.none or config.releases_rows
    if has_bank and (size is None) == (ratio is None):  # else neither has an effect
        raise ConfigError(
            f"anomaly.coreset_size={_null(size)} with anomaly.coreset_ratio={_null(ratio)}: give "
            "exactly one, for example anomaly.coreset_size=null anomaly.coreset_ratio=0.1"
        )
    if config.anomaly.rows_per_image != 1 and not config.releases_rows:
        raise ConfigError(
            f"anomaly.rows_per_image={config.anomaly.rows_per_image} is for "
            "anomaly.mechanism=noisy_rows in privacy=sample: leave it at 1"
        )
    if not config.releases_rows:
        return
    if config.privacy.style is not PrivacyStyle.sample:
        raise ConfigError(
            f"anomaly.mechanism=noisy_rows contradicts privacy.style={config.privacy.style}: rows "
            "of clients do not add up, so there is no sum in which a client could hide; use "
            "anomaly.mechanism=dp_gaussian, or privacy=sample"
        )
    if config.data_ledger is not None:
        raise ConfigError(
            f"data_ledger={config.data_ledger} adds up guarantees for a record that contributes or "
            "not, and anomaly.mechanism=noisy_rows has one for a record that is replaced: the "
            "two do not compose; use anomaly.mechanism=dp_gaussian or data_ledger=null"
        )


def _null(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"


def _check_data_ledger(config: Config) -> None:
    path = config.data_ledger
    if path is None:
        return
    if not path.startswith("/"):
        raise ConfigError(
            f"data_ledger={path} is not an absolute path: for example "
            "data_ledger=/var/lib/dp_fedmed/data_ledger.jsonl"
        )
    if not config.data.id:
        raise ConfigError(
            f"data_ledger={path} counts what runs spend on the same data: say which data they are, "
            "for example data.id=chest-xrays-2024"
        )
    unbounded = None
    if config.privacy.style is PrivacyStyle.none:
        unbounded = "privacy=none"
    elif config.privacy.noise_seed is not None:
        unbounded = f"privacy.noise_seed={config.privacy.noise_seed}"
    if unbounded is not None:
        raise ConfigError(
            f"{unbounded} protects nobody, so no sum in data_ledger={path} could count it: use "
            "privacy=sample, user or hybrid, or data_ledger=null and keep what the run makes with "
            "those who hold the data"
        )


def _check_noise_source(level: str, settings: SamplePrivacyConfig | UserPrivacyConfig) -> None:
    given = [settings.target_epsilon is not None, settings.noise_multiplier is not None]
    if not any(given):
        raise ConfigError(
            f"privacy.{level} needs privacy.{level}.target_epsilon (for example 3) or "
            f"privacy.{level}.noise_multiplier (for example 1.0)"
        )
