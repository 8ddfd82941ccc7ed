"""What a federation learns, at the server and at a client: the seam that both apps work through."""

from dp_fedmed.learning.base import Evaluation, Learner, LocalRound, LocalWork, Pictures

__all__ = ["Evaluation", "Learner", "LocalRound", "LocalWork", "Pictures"]
