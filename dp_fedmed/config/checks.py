"""Validates a configuration: ranges, choices, and keys that contradict each other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from dp_fedmed.config.choices import (
    Clipping,
    EngineName,
    Loss,
    PrivacyStyle,
    SamplerName,
    ServerOptimizerName,
    TaskKind,
    Topology,
    Weighting,
)
from dp_fedmed.config.named_code import MODULE, refuse_code
from dp_fedmed.config.noise_checks import noise_place, secure_aggregation
from dp_fedmed.config.own_data import refuse_unread_path
from dp_fedmed.config.quorum import cohort_size
from dp_fedmed.config.schema import Config
from dp_fedmed.config.tree import assignment, get, settings
from dp_fedmed.errors import ConfigError

RESUME = re.compile(r"last|best|round:\d+")
SKEWS = ("linear", "square", "exponential")


def validate(config: Config) -> None:
    """Refuses values out of range and keys that contradict each other."""

    def filled(found: re.Match[str]) -> str:
        return assignment(config, found[1]) if found[1] in settings() else found[0]

    for check in CHECKS:
        for refusal in check(config):
            raise ConfigError(re.sub(r"{([\w.]+)}", filled, refusal))


METRICS: dict[TaskKind, tuple[str, ...]] = {
    TaskKind.classification: ("accuracy", "balanced_accuracy", "auroc", "f1", "loss"),
    TaskKind.segmentation: ("dice", "iou", "loss"),
    TaskKind.regression: ("rmse", "mae", "r2", "loss"),
    TaskKind.anomaly: (
        *("image_auroc", "pixel_auroc"),
        *("aupro_0.01", "aupro_0.05", "aupro_0.1", "aupro_0.3", "aupro_1"),
    ),
}
LOSSES: dict[TaskKind, tuple[Loss, ...]] = {
    TaskKind.classification: (Loss.cross_entropy,),
    TaskKind.segmentation: (Loss.dice_ce, Loss.soft_dice, Loss.cross_entropy),
    TaskKind.regression: (Loss.mse, Loss.huber, Loss.mae),
}
BACKBONES = ("filters", "mobilenet_v2", "resnet18", "wide_resnet50_2", "tiny")
#: Releases of each private mechanism, one per round.
RELEASES = {"dp_gaussian": 2, "dp_prototypes": 2, "noisy_rows": 1}


def num_releases(mechanism: str) -> int:
    """Rounds that a private anomaly mechanism takes; 2 for a name that will be refused.

    >>> num_releases("dp_gaussian"), num_releases("noisy_rows")
    (2, 1)
    """
    return RELEASES.get(str(mechanism), 2)


def _numbers(config: Config) -> Iterator[str]:
    for key, setting in settings().items():
        value = get(config, key)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key}={value} is not a finite number"
        if value is None or setting.within is None:
            continue
        low, high = setting.within
        if not low <= value <= high:
            yield f"{key}={value} is out of range: give a value from {low:g} to {high:g}"


def _words(config: Config) -> Iterator[str]:
    if config.data.partition.skew not in SKEWS:
        yield f"{{data.partition.skew}} is not one of {', '.join(SKEWS)}"
    if config.data.group_by not in (None, "patient"):
        yield (
            "{data.group_by} is not known: use data.group_by=patient, the ids that a loader puts "
            "into Records.patient, or leave it null"
        )
    refuse_unread_path(config.data)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", config.training.device):
        yield "{training.device} is not one of auto, cpu, cuda, cuda:N, mps"
    metrics = METRICS[config.task.kind]
    if config.task.metric not in metrics:
        yield (
            f"{{task.metric}} is not computed for {config.task.kind}: choose from "
            f"{', '.join(metrics)}"
        )
    if config.resume is not None and not RESUME.fullmatch(config.resume):
        yield (
            "{resume} is not known: use resume=last, resume=best, resume=round:3, or the path of "
            "a run directory"
        )


def _named_code(config: Config) -> Iterator[str]:
    """Refuses code outside the declared modules and those that the user allows."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", config.model._target_):
        yield (
            "{model._target_} is not a dotted import path: for example "
            "my_package.my_module.MyNetwork"
        )
    for module in config.allow_code:
        if not MODULE.fullmatch(module):
            yield (
                f"{{allow_code}} holds {module!r}, which is not a package or module: for example "
                "allow_code=[my_package]"
            )
    refuse_code("model._target_", config.model._target_, config.allow_code)
    if "." in config.data.name:
        refuse_code("data.name", config.data.name, config.allow_code)


def _pairs(config: Config) -> Iterator[str]:
    federation, task = config.federation, config.task
    if federation.min_clients is not None and federation.min_clients > cohort_size(config):
        yield (
            "{federation.min_clients} is more than a round asks: {federation.sample_rate} of "
            f"{{federation.num_clients}} is {cohort_size(config)}"
        )
    if federation.sampler is SamplerName.all and federation.sample_rate != 1.0:
        yield (
            "{federation.sampler} contradicts {federation.sample_rate}: use "
            "federation.sampler=fixed or sample_rate=1"
        )
    if config.data.val_fraction + config.data.test_fraction >= 1.0:
        yield (
            "{data.val_fraction} and {data.test_fraction} leave nothing to train on: their sum "
            "must be below 1"
        )
    losses = LOSSES.get(task.kind, (task.loss,))
    if task.loss not in losses:
        fitting = " or ".join(f"task.loss={loss}" for loss in losses)
        yield f"{{task.loss}} does not fit {{task.kind}}: use {fitting}"


def _topology(config: Config) -> Iterator[str]:
    """Refuses client-level privacy and sampling where a baseline topology rules them out."""
    federation = config.federation
    if federation.topology is Topology.federated:
        return
    is_pooled = federation.topology is Topology.centralized
    if config.privacy.style.protects_clients:
        reason = "a client that trains alone cannot hide among others"
        if is_pooled:
            reason = "all records are at one site, so there is no client to hide"
        yield (
            f"{{privacy.style}} contradicts {{federation.topology}}: {reason}; use privacy=none or "
            "privacy=sample"
        )
    if federation.sample_rate != 1.0 and (is_pooled or config.task.kind is TaskKind.anomaly):
        reason = "a client that is left out of a release has no detector of its own"
        if is_pooled:
            reason = "there is one site, and it trains in every round"
        yield (
            f"{{federation.sample_rate}} contradicts {{federation.topology}}: {reason}; use "
            "federation.sample_rate=1"
        )


def _privacy(config: Config) -> Iterator[str]:
    """Refuses settings that break the guarantee of the privacy style."""
    style, federation = config.privacy.style, config.federation
    for level, is_protected, held in (
        ("sample", style.protects_records, config.privacy.sample),
        ("user", style.protects_clients, config.privacy.user),
    ):
        if is_protected and held.target_epsilon is None and held.noise_multiplier is None:
            yield (
                f"privacy.{level} needs privacy.{level}.target_epsilon (for example 3) or "
                f"privacy.{level}.noise_multiplier (for example 1.0)"
            )
    if style.protects_clients:
        if federation.min_clients is not None:
            yield (
                "{federation.min_clients} contradicts {privacy.style}: how many took part is "
                "secret there and may decide nothing; leave it null"
            )
        if federation.weighting is not Weighting.uniform:
            yield (
                "{federation.weighting} contradicts {privacy.style}: weights by examples break "
                "the bound on one client; use federation.weighting=uniform"
            )
    if not style.protects_records and federation.max_participations is not None:
        yield (
            "{federation.max_participations} limits a record-level budget, but {privacy.style} has "
            "none: use privacy=sample or privacy=hybrid"
        )


def _anomaly(config: Config) -> Iterator[str]:
    """Refuses training settings: an anomaly task computes one bank or statistic."""
    if config.task.kind is not TaskKind.anomaly:
        return
    federation, privacy = config.federation, config.privacy
    if config.anomaly.backbone not in BACKBONES:
        yield f"{{anomaly.backbone}} is not known: choose from {', '.join(BACKBONES)}"
    yield from _coreset(config)
    is_private = privacy.style is not PrivacyStyle.none
    rounds = RELEASES[config.anomaly.mechanism] if is_private else 1
    made = "{anomaly.mechanism}" if is_private else "a memory bank"
    if federation.num_rounds != rounds:
        yield (
            f"{{federation.num_rounds}} does not fit: with {{privacy.style}}, {made} takes "
            f"federation.num_rounds={rounds}"
        )
    most = federation.max_participations
    if most is not None and most < rounds:
        yield (
            "{federation.max_participations} leaves everybody out of the last release: use "
            f"federation.max_participations={rounds} or null"
        )
    if federation.server_optimizer is not ServerOptimizerName.fedavg or federation.server_lr != 1.0:
        yield (
            "{federation.server_optimizer} with {federation.server_lr} is for models that are "
            "trained: an anomaly task takes federation.server_optimizer=fedavg and "
            "federation.server_lr=1"
        )
    if privacy.style.protects_records and privacy.sample.max_grad_norm != 1.0:
        yield (
            "{privacy.sample.max_grad_norm} does not fit: an image's vector has norm at most 1; "
            "use privacy.sample.max_grad_norm=1"
        )
    if privacy.style.protects_clients and privacy.user.clipping is not Clipping.fixed:
        yield (
            "{privacy.user.clipping} does not fit: a client's vector has norm at most 1 as it is; "
            "use privacy.user.clipping=fixed"
        )


def _coreset(config: Config) -> Iterator[str]:
    """Refuses ambiguous bank sizes, and guarantees that do not exist for released rows."""
    size, ratio = config.anomaly.coreset_size, config.anomaly.coreset_ratio
    has_bank = config.privacy.style is PrivacyStyle.none or config.releases_rows
    if has_bank and (size is None) == (ratio is None):  # else neither has an effect
        yield (
            "{anomaly.coreset_size} with {anomaly.coreset_ratio}: give exactly one, for example "
            "anomaly.coreset_size=null anomaly.coreset_ratio=0.1"
        )
    if config.anomaly.rows_per_image != 1 and not config.releases_rows:
        yield (
            "{anomaly.rows_per_image} is for anomaly.mechanism=noisy_rows in privacy=sample: leave "
            "it at 1"
        )
    if config.releases_rows and config.privacy.style is not PrivacyStyle.sample:
        yield (
            "{anomaly.mechanism} contradicts {privacy.style}: rows of clients do not add up, so "
            "there is no sum in which a client could hide; use anomaly.mechanism=dp_gaussian, or "
            "privacy=sample"
        )
    if config.releases_rows and config.data_ledger is not None:
        yield (
            "{data_ledger} adds up guarantees for a record that contributes or not, and "
            "{anomaly.mechanism} has one for a record that is replaced: the two do not compose; "
            "use anomaly.mechanism=dp_gaussian or data_ledger=null"
        )


def _data_ledger(config: Config) -> Iterator[str]:
    path = config.data_ledger
    if path is None:
        return
    if not path.startswith("/"):
        yield (
            "{data_ledger} is not an absolute path: for example "
            "data_ledger=/var/lib/dp_fedmed/data_ledger.jsonl"
        )
    if not config.data.id:
        yield (
            "{data_ledger} counts what runs spend on the same data: say which data they are, for "
            "example data.id=chest-xrays-2024"
        )
    is_private = config.privacy.style is not PrivacyStyle.none
    if not is_private or config.privacy.noise_seed is not None:
        unbounded = "{privacy.noise_seed}" if is_private else "privacy=none"
        yield (
            f"{unbounded} protects nobody, so no sum in {{data_ledger}} could count it: use "
            "privacy=sample, user or hybrid, or data_ledger=null and keep what the run makes with "
            "those who hold the data"
        )


def _engine(config: Config) -> Iterator[str]:
    engine = config.engine
    has_timeout = config.federation.round_timeout is not None
    if engine.name is EngineName.local and engine.workers == 1 and has_timeout:
        yield (
            "{federation.round_timeout} needs worker processes, but {engine.workers} computes in "
            "this process: use engine.workers=2 or more"
        )
    if engine.address is not None and engine.name is not EngineName.ray:
        yield "{engine.address} is a Ray cluster's, but {engine.name}: use engine=ray"


#: In this order; each yields what it refuses, in which `{key}` stands for `key=value`.
CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    *(_numbers, _words, _named_code, _pairs, _topology),
    *(_privacy, noise_place, secure_aggregation, _anomaly, _data_ledger, _engine),
)
