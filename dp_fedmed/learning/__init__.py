"""What a federation learns, at the server and at a client: the seam that both apps work through."""

from dp_fedmed.learning.base import Learner, LocalRound, LocalWork, make_learner, make_work

__all__ = ["Learner", "LocalRound", "LocalWork", "make_learner", "make_work"]
