"""Mechanisms, noise streams, accountants and calibration: the mathematics of the guarantee.

Usable alone: it knows nothing of Flower, torch or Hydra. Names are imported on first use, so that
importing the package costs nothing.

Example:
    >>> from dp_fedmed.privacy import compute_noise_multiplier
    >>> sigma = compute_noise_multiplier(
    ...     target_epsilon=8.0, target_delta=1e-5, sample_rate=0.1,
    ...     steps_per_round=10, num_rounds=100)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.privacy.accounting.accountant import PrivacyAccountant as PrivacyAccountant
    from dp_fedmed.privacy.accounting.calibration import calibrate as calibrate
    from dp_fedmed.privacy.accounting.calibration import compute_epsilon as compute_epsilon
    from dp_fedmed.privacy.accounting.calibration import compute_max_rounds as compute_max_rounds
    from dp_fedmed.privacy.accounting.calibration import (
        compute_max_sample_rate as compute_max_sample_rate,
    )
    from dp_fedmed.privacy.accounting.calibration import (
        compute_noise_multiplier as compute_noise_multiplier,
    )
    from dp_fedmed.privacy.accounting.calibration import get_privacy_spent as get_privacy_spent
    from dp_fedmed.privacy.accounting.events import PrivacyEvent as PrivacyEvent
    from dp_fedmed.privacy.accounting.gaussian import gaussian_delta as gaussian_delta
    from dp_fedmed.privacy.accounting.gaussian import gaussian_epsilon as gaussian_epsilon
    from dp_fedmed.privacy.accounting.gaussian import gaussian_sigma as gaussian_sigma
    from dp_fedmed.privacy.accounting.group import chained_epsilon as chained_epsilon
    from dp_fedmed.privacy.accounting.group import group_epsilon as group_epsilon
    from dp_fedmed.privacy.accounting.group import mixed_epsilon as mixed_epsilon
    from dp_fedmed.privacy.accounting.history import History as History
    from dp_fedmed.privacy.accounting.odds import guess_probability as guess_probability
    from dp_fedmed.privacy.mechanisms.clipping import clip_l2 as clip_l2
    from dp_fedmed.privacy.mechanisms.clipping import clip_l2_rows as clip_l2_rows
    from dp_fedmed.privacy.streams.noise import NoiseKey as NoiseKey
    from dp_fedmed.privacy.streams.noise import NoiseStream as NoiseStream
    from dp_fedmed.privacy.streams.noise import Purpose as Purpose
    from dp_fedmed.privacy.streams.noise import StreamId as StreamId
    from dp_fedmed.privacy.streams.noise import public_digest as public_digest
    from dp_fedmed.privacy.toolbox.accountants import (
        ExpenditureAccountant as ExpenditureAccountant,
    )
    from dp_fedmed.privacy.toolbox.accountants import StepAccountant as StepAccountant
    from dp_fedmed.privacy.toolbox.accountants import compose_advanced as compose_advanced
    from dp_fedmed.privacy.toolbox.accountants import compose_basic as compose_basic
    from dp_fedmed.privacy.toolbox.embedding_sanitizer import DPConfig as DPConfig
    from dp_fedmed.privacy.toolbox.embedding_sanitizer import (
        EmbeddingSanitizer as EmbeddingSanitizer,
    )
    from dp_fedmed.privacy.toolbox.mechanisms import ExponentialMechanism as ExponentialMechanism
    from dp_fedmed.privacy.toolbox.mechanisms import GaussianMechanism as GaussianMechanism
    from dp_fedmed.privacy.toolbox.mechanisms import LaplaceMechanism as LaplaceMechanism
    from dp_fedmed.privacy.toolbox.mechanisms import RandomizedResponse as RandomizedResponse
    from dp_fedmed.privacy.toolbox.zcdp import epsilon_to_rho as epsilon_to_rho
    from dp_fedmed.privacy.toolbox.zcdp import gaussian_rho as gaussian_rho
    from dp_fedmed.privacy.toolbox.zcdp import rho_to_epsilon as rho_to_epsilon
    from dp_fedmed.privacy.toolbox.zcdp import rho_to_sigma as rho_to_sigma


_HOME = {
    "accounting.accountant": ("PrivacyAccountant",),
    "accounting.calibration": (
        "calibrate",
        "compute_epsilon",
        "compute_max_rounds",
        "compute_max_sample_rate",
        "compute_noise_multiplier",
        "get_privacy_spent",
    ),
    "accounting.events": ("PrivacyEvent",),
    "accounting.gaussian": ("gaussian_delta", "gaussian_epsilon", "gaussian_sigma"),
    "accounting.group": ("chained_epsilon", "group_epsilon", "mixed_epsilon"),
    "accounting.history": ("History",),
    "accounting.odds": ("guess_probability",),
    "mechanisms.clipping": ("clip_l2", "clip_l2_rows"),
    "streams.noise": ("NoiseKey", "NoiseStream", "Purpose", "StreamId", "public_digest"),
    "toolbox.accountants": (
        "ExpenditureAccountant",
        "StepAccountant",
        "compose_advanced",
        "compose_basic",
    ),
    "toolbox.embedding_sanitizer": ("DPConfig", "EmbeddingSanitizer"),
    "toolbox.mechanisms": (
        "ExponentialMechanism",
        "GaussianMechanism",
        "LaplaceMechanism",
        "RandomizedResponse",
    ),
    "toolbox.zcdp": ("epsilon_to_rho", "gaussian_rho", "rho_to_epsilon", "rho_to_sigma"),
}
__getattr__, __dir__, __all__ = lazily(__name__, _HOME)
