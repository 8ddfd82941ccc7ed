"""One round among sites: who takes part, what it costs, and what becomes of the answers."""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.federation.charges import Charge as Charge
    from dp_fedmed.federation.charges import StoredRelease as StoredRelease
    from dp_fedmed.federation.messages import Introduction as Introduction
    from dp_fedmed.federation.messages import RecordAnswer as RecordAnswer
    from dp_fedmed.federation.messages import RecordOrder as RecordOrder
    from dp_fedmed.federation.messages import RoundOrder as RoundOrder
    from dp_fedmed.federation.nodes import Node as Node
    from dp_fedmed.federation.nodes import check_ready as check_ready
    from dp_fedmed.federation.nodes import client_name as client_name
    from dp_fedmed.federation.nodes import wait_for_nodes as wait_for_nodes
    from dp_fedmed.federation.plan import ClientPlan as ClientPlan
    from dp_fedmed.federation.plan import PrivacyPlan as PrivacyPlan
    from dp_fedmed.federation.plan import Spent as Spent
    from dp_fedmed.federation.privacy_guard import PrivacyGuard as PrivacyGuard
    from dp_fedmed.federation.rounds import RoundObserver as RoundObserver
    from dp_fedmed.federation.rounds import RoundRecord as RoundRecord
    from dp_fedmed.federation.rounds import RoundSettings as RoundSettings
    from dp_fedmed.federation.run_account import Limits as Limits
    from dp_fedmed.federation.sampling import SAMPLERS as SAMPLERS
    from dp_fedmed.federation.sampling import Sampler as Sampler
    from dp_fedmed.federation.server_optimizer import ServerOptimizer as ServerOptimizer
    from dp_fedmed.federation.stopping import StopRequest as StopRequest
    from dp_fedmed.federation.strategy import DPStrategy as DPStrategy

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "charges": ("Charge", "StoredRelease"),
        "messages": ("Introduction", "RecordAnswer", "RecordOrder", "RoundOrder"),
        "nodes": ("Node", "check_ready", "client_name", "wait_for_nodes"),
        "plan": ("ClientPlan", "PrivacyPlan", "Spent"),
        "privacy_guard": ("PrivacyGuard",),
        "rounds": ("RoundObserver", "RoundRecord", "RoundSettings"),
        "run_account": ("Limits",),
        "sampling": ("SAMPLERS", "Sampler"),
        "server_optimizer": ("ServerOptimizer",),
        "stopping": ("StopRequest",),
        "strategy": ("DPStrategy",),
    },
)
