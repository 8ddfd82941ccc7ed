"""What a deployed client allows, whatever the server's settings say.

A deployment's settings are chosen by whoever starts the run, and so are not the site's own: a
server could ask for `privacy=none`, a public noise seed, ε = 1000 or code of its choice. A site
writes its own rules into the node-config of its SuperNode, which no server can change.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_fedmed.config import Config
from dp_fedmed.config.named_code import refuse_code
from dp_fedmed.errors import ConfigError, SiteRefused

MAX_EPSILON, DELTA, METRICS, ALLOW = "max-epsilon", "delta", "publish-metrics", "allow-code"
SHARES = "allow-shares"
SIMULATED = ("partition-id", "num-partitions")
KNOWN = (
    *SIMULATED,
    "client-id",
    "data-path",
    "state-dir",
    MAX_EPSILON,
    DELTA,
    METRICS,
    ALLOW,
    SHARES,
)


@dataclass(frozen=True, kw_only=True)
class SiteRules:
    """A site's own rules.

    Attributes:
        deployed: whether this client is a site of its own, not a part of a simulation.
        max_epsilon: the most that all runs together may cost one of its records; None for no limit.
        delta: of that limit; None for the default of the site's number of records.
        publish_metrics: whether metrics of its validation records may be sent under a limit.
        allow_code: modules whose code it runs besides the declared ones.
        allow_shares: whether a share of the noise will do under a limit.
    """

    deployed: bool = False
    max_epsilon: float | None = None
    delta: float | None = None
    publish_metrics: bool = False
    allow_code: tuple[str, ...] = ()
    allow_shares: bool = False

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> SiteRules:
        """The rules in a node-config.

        Raises:
            SiteRefused: for a key that is not known, since a rule with a typo would be no rule.

        >>> SiteRules.of({"client-id": "north", "max-epsilon": 3.0}).max_epsilon
        3.0
        """
        try:
            return cls._of(node_config)
        except ConfigError as error:
            raise SiteRefused(str(error), "its own rules cannot be read") from None

    @classmethod
    def _of(cls, node_config: Mapping[str, Any]) -> SiteRules:
        deployed = cls.is_deployed(node_config)
        for key in node_config:
            if key not in KNOWN and deployed:
                near = difflib.get_close_matches(key, KNOWN, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"node-config {key} is not known{hint}: use {', '.join(KNOWN)}")
        words = str(node_config.get(ALLOW, "")).replace(",", " ").split()
        return cls(
            deployed=deployed,
            max_epsilon=_number(node_config, MAX_EPSILON, 1e4),
            delta=_number(node_config, DELTA, 0.5),
            publish_metrics=_flag(node_config, METRICS),
            allow_code=tuple(words),
            allow_shares=_flag(node_config, SHARES),
        )

    @staticmethod
    def is_deployed(node_config: Mapping[str, Any]) -> bool:
        """Whether a client is a site of its own, not a part of a simulation."""
        return SIMULATED[0] not in node_config

    def check(self, config: Config) -> None:
        """Refuse settings of a server that this site does not go along with.

        Raises:
            SiteRefused: naming the setting and the site's rule.
        """
        if self.deployed:
            try:
                self._check(config)
            except ConfigError as error:
                raise SiteRefused(str(error), "its own rules refuse these settings") from None

    def _check(self, config: Config) -> None:
        how = f"{ALLOW}='{{package}}' in the node-config of this client"
        refuse_code("model._target_", config.model._target_, self.allow_code, how)
        if "." in config.data.name:
            refuse_code("data.name", config.data.name, self.allow_code, how)
        if config.privacy.noise_seed is not None:
            raise ConfigError(
                f"privacy.noise_seed={config.privacy.noise_seed} would let the server compute this "
                "client's noise: leave it null in a deployment"
            )
        if self.max_epsilon is None:
            return
        if not config.privacy.style.protects_records:
            raise ConfigError(
                f"privacy.style={config.privacy.style} adds no noise at this client, whose node-"
                f"config says {MAX_EPSILON}={self.max_epsilon:g}: use privacy=sample or hybrid"
            )
        if config.record_noise_at_server:
            raise ConfigError(
                f"privacy.noise=server adds no noise at this client, whose node-config says "
                f"{MAX_EPSILON}={self.max_epsilon:g}: use privacy.noise=client"
            )
        if config.sums_records and not self.allow_shares:
            raise ConfigError(
                f"privacy.noise=shares adds a share of the noise at this client, whose node-config "
                f"says {MAX_EPSILON}={self.max_epsilon:g}: it holds if the server follows the "
                f"protocol and enough other clients are honest; allow that with {SHARES}=true in "
                "the node-config, or use privacy.noise=client"
            )

    def check_evaluation(self) -> None:
        """Refuse to send metrics of private records, which no ε covers, unless that is wanted."""
        if self.max_epsilon is not None and not self.publish_metrics:
            raise ConfigError(
                f"metrics of this client's records are no part of {MAX_EPSILON}="
                f"{self.max_epsilon:g}: allow them with {METRICS}=true in its node-config"
            )


def _flag(node_config: Mapping[str, Any], key: str) -> bool:
    value = node_config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"node-config {key}={value!r} is neither true nor false")
    return value


def _number(node_config: Mapping[str, Any], key: str, most: float) -> float | None:
    value = node_config.get(key)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value <= most:
        raise ConfigError(f"node-config {key}={value!r} is not a number above 0 and up to {most:g}")
    return float(value)
