"""What a federation learns, at the server and at a client: the seam that both apps work through."""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.learning.anomaly.detector import BANK_MECHANISM as BANK_MECHANISM
    from dp_fedmed.learning.anomaly.detector import DetectorSettings as DetectorSettings
    from dp_fedmed.learning.anomaly.learner import AnomalyLearner as AnomalyLearner
    from dp_fedmed.learning.anomaly.learner import AnomalyWork as AnomalyWork
    from dp_fedmed.learning.anomaly.steps import BankStep as BankStep
    from dp_fedmed.learning.anomaly.steps import NoisyRowsStep as NoisyRowsStep
    from dp_fedmed.learning.anomaly.steps import StatisticStep as StatisticStep
    from dp_fedmed.learning.base import Evaluation as Evaluation
    from dp_fedmed.learning.base import Learner as Learner
    from dp_fedmed.learning.base import LocalRound as LocalRound
    from dp_fedmed.learning.base import LocalWork as LocalWork
    from dp_fedmed.learning.base import Pictures as Pictures
    from dp_fedmed.learning.local_only import LocalOnlyLearner as LocalOnlyLearner
    from dp_fedmed.learning.local_only import LocalOnlyStep as LocalOnlyStep
    from dp_fedmed.learning.networks.learner import Build as Build
    from dp_fedmed.learning.networks.learner import NetworkLearner as NetworkLearner
    from dp_fedmed.learning.networks.learner import NetworkWork as NetworkWork
    from dp_fedmed.learning.networks.local_training import LocalTraining as LocalTraining
    from dp_fedmed.learning.networks.task import Task as Task
    from dp_fedmed.learning.networks.task import make_task as make_task
    from dp_fedmed.learning.server_step import GradientStep as GradientStep
    from dp_fedmed.learning.server_step import ServerStep as ServerStep

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "anomaly.detector": ("BANK_MECHANISM", "DetectorSettings"),
        "anomaly.learner": ("AnomalyLearner", "AnomalyWork"),
        "anomaly.steps": ("BankStep", "NoisyRowsStep", "StatisticStep"),
        "base": ("Evaluation", "Learner", "LocalRound", "LocalWork", "Pictures"),
        "local_only": ("LocalOnlyLearner", "LocalOnlyStep"),
        "networks.learner": ("Build", "NetworkLearner", "NetworkWork"),
        "networks.local_training": ("LocalTraining",),
        "networks.task": ("Task", "make_task"),
        "server_step": ("GradientStep", "ServerStep"),
    },
)
