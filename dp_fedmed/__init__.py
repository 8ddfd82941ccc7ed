"""Differentially private federated learning for medicine, on Flower, Opacus and Hydra.

Whole experiments: `run`, `plan`, `compose`, `resume`. The parts, for a Flower app of one's own:
`DPStrategy`, samplers, mechanisms, `RunLedger`, `PrivacyAccountant`, `PrivacyEvent`, `calibrate`.
Names are imported on first use.

Example:
    >>> import dp_fedmed
    >>> result = dp_fedmed.run(["task=breast_cancer", "privacy=sample"])  # doctest: +SKIP
    >>> result.privacy.epsilon("record"), result.test["accuracy"]  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily
from dp_fedmed.version import __version__ as __version__

if TYPE_CHECKING:
    from dp_fedmed.config import Config as Config
    from dp_fedmed.config import compose as compose
    from dp_fedmed.errors import DPFedMedError as DPFedMedError
    from dp_fedmed.federation.rounds import RoundSettings as RoundSettings
    from dp_fedmed.federation.sampling import AllSampler as AllSampler
    from dp_fedmed.federation.sampling import FixedSampler as FixedSampler
    from dp_fedmed.federation.sampling import PoissonSampler as PoissonSampler
    from dp_fedmed.federation.sampling import Sampler as Sampler
    from dp_fedmed.federation.server_optimizer import ServerOptimizer as ServerOptimizer
    from dp_fedmed.federation.strategy import DPStrategy as DPStrategy
    from dp_fedmed.library import RunResult as RunResult
    from dp_fedmed.library import plan as plan
    from dp_fedmed.library import resume as resume
    from dp_fedmed.library import run as run
    from dp_fedmed.privacy import History as History
    from dp_fedmed.privacy import PrivacyAccountant as PrivacyAccountant
    from dp_fedmed.privacy import PrivacyEvent as PrivacyEvent
    from dp_fedmed.privacy import calibrate as calibrate
    from dp_fedmed.privacy.mechanisms import AdaptiveClientUpdates as AdaptiveClientUpdates
    from dp_fedmed.privacy.mechanisms import ClientUpdates as ClientUpdates
    from dp_fedmed.privacy.mechanisms import Mechanism as Mechanism
    from dp_fedmed.run.ledger import RunLedger as RunLedger

_HOME = {
    "config": ("Config", "compose"),
    "errors": ("DPFedMedError",),
    "federation.rounds": ("RoundSettings",),
    "federation.sampling": ("AllSampler", "FixedSampler", "PoissonSampler", "Sampler"),
    "federation.server_optimizer": ("ServerOptimizer",),
    "federation.strategy": ("DPStrategy",),
    "library": ("RunResult", "plan", "resume", "run"),
    "privacy": ("History", "PrivacyAccountant", "PrivacyEvent", "calibrate"),
    "privacy.mechanisms": ("AdaptiveClientUpdates", "ClientUpdates", "Mechanism"),
    "run.ledger": ("RunLedger",),
}
__getattr__, __dir__, __all__ = lazily(__name__, _HOME)
