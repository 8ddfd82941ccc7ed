"""The settings that are one of a few words."""

from __future__ import annotations

from enum import StrEnum


class TaskKind(StrEnum):
    """What is learned."""

    classification = "classification"
    segmentation = "segmentation"
    regression = "regression"
    anomaly = "anomaly"


class Loss(StrEnum):
    """Training losses; each is a mean of per-record losses."""

    cross_entropy = "cross_entropy"
    soft_dice = "soft_dice"
    dice_ce = "dice_ce"
    mse = "mse"
    mae = "mae"
    huber = "huber"


#: Metrics of which less is better; of all others more is.
LOWER_IS_BETTER = frozenset({"loss", "rmse", "mae"})


def better(metric: str) -> float:
    """1 where a larger value of a metric is better, −1 where a smaller one is.

    >>> better("accuracy"), better("rmse")
    (1.0, -1.0)
    """
    return -1.0 if metric in LOWER_IS_BETTER else 1.0


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


class Topology(StrEnum):
    """Who trains with whose records: a federation, or one of the two that it is compared with."""

    federated = "federated"
    centralized = "centralized"
    local_only = "local_only"


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
    """Which accountant calibrates and enforces; RDP is reported beside it.

    `tight` is decided from the plan: the closed form where everything has q = 1, PLD elsewhere.
    """

    rdp = "rdp"
    pld = "pld"
    tight = "tight"


class Calibration(StrEnum):
    """Whether each client uses up its own budget, or all use the σ of the one that needs most."""

    per_client = "per_client"
    worst_client = "worst_client"


class GradMode(StrEnum):
    """How per-record gradients are computed; `auto` takes the first that is right."""

    auto = "auto"
    hooks = "hooks"
    functorch = "functorch"


class MechanismName(StrEnum):
    """What a private anomaly task releases of normal images: a statistic, or single rows (weak)."""

    dp_gaussian = "dp_gaussian"
    dp_prototypes = "dp_prototypes"
    noisy_rows = "noisy_rows"


class Clipping(StrEnum):
    """How the norm that bounds a client's update is found."""

    fixed = "fixed"
    adaptive = "adaptive"
