"""What a run would spend and suffer, before it is started."""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.planning.noise import anomaly_advice as anomaly_advice
    from dp_fedmed.planning.noise import largest_sigma as largest_sigma
    from dp_fedmed.planning.noise import noise_of as noise_of
    from dp_fedmed.planning.plan import default_delta as default_delta
    from dp_fedmed.planning.plan import make_plan as make_plan
    from dp_fedmed.planning.plan import make_sampler as make_sampler
    from dp_fedmed.planning.plan import record_adjacency as record_adjacency
    from dp_fedmed.planning.plan import round_shape as round_shape

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "noise": ("anomaly_advice", "largest_sigma", "noise_of"),
        "plan": ("default_delta", "make_plan", "make_sampler", "record_adjacency", "round_shape"),
    },
)
