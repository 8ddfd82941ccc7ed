"""The settings that are one of a few words."""

from __future__ import annotations

from enum import StrEnum

#: What is learned.
TaskKind = StrEnum("TaskKind", "classification segmentation regression anomaly")
#: Training losses; each is a mean of per-record losses.
Loss = StrEnum("Loss", "cross_entropy soft_dice dice_ce mse mae huber")
#: Optimizers of a client's local training.
OptimizerName = StrEnum("OptimizerName", "sgd adam adamw")
#: How the server applies the averaged update (Reddi et al. 2021).
ServerOptimizerName = StrEnum("ServerOptimizerName", "fedavg fedavgm fedadam")
#: How the participants of a round are drawn.
SamplerName = StrEnum("SamplerName", "all fixed poisson")
#: How much a client's update counts in the average.
Weighting = StrEnum("Weighting", "examples uniform")
#: Who trains with whose records: a federation, or one of its two baselines.
Topology = StrEnum("Topology", "federated centralized local_only")
#: How one data set is spread over simulated clients.
PartitionName = StrEnum("PartitionName", "iid dirichlet pathological size_skewed natural")
#: Where the clients compute.
EngineName = StrEnum("EngineName", "local ray")
#: Whether each client uses up its own budget, or all use the σ of the one that needs most.
Calibration = StrEnum("Calibration", "per_client worst_client")
#: How per-record gradients are computed; `auto` takes the first mode that is right.
GradMode = StrEnum("GradMode", "auto hooks functorch")
#: What a private anomaly task releases of normal images: a statistic, or single rows (weak).
MechanismName = StrEnum("MechanismName", "dp_gaussian dp_prototypes noisy_rows")
#: Who draws the noise: each client all of it, all clients a share each, or the server for the sum.
NoisePlace = StrEnum("NoisePlace", "client shares server")
#: How the norm that bounds a client's update is found.
Clipping = StrEnum("Clipping", "fixed adaptive")


class AccountantName(StrEnum):
    """Which accountant calibrates and enforces; RDP is reported beside it.

    `tight` is decided from the plan: the closed form where everything has q = 1, PLD elsewhere.
    """

    rdp = "rdp"
    pld = "pld"
    tight = "tight"


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


#: Metrics of which less is better; of all others more is.
LOWER_IS_BETTER = frozenset({"loss", "rmse", "mae"})


def better(metric: str) -> float:
    """1 where a larger value of a metric is better, −1 where a smaller one is.

    >>> better("accuracy"), better("rmse")
    (1.0, -1.0)
    """
    return -1.0 if metric in LOWER_IS_BETTER else 1.0
