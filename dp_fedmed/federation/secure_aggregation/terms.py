"""What the parties of one attempt at a round agree on before anything secret is made."""

from __future__ import annotations

from dataclasses import dataclass

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation.plain import Plain


@dataclass(frozen=True, kw_only=True)
class Terms(Plain):
    """One attempt at adding up one round; every key and mask depends on all of it.

    Attributes:
        run: the run's id.
        server_round: the round.
        attempt: a number of its own for each attempt at the round.
        length: how many integers a contribution has.
        minimum: how many contributions a sum must have to be unmasked.
        colluding: how many clients may tell the server all that they know.

    Example:
        >>> terms = Terms(run="r", server_round=1, attempt=0, length=10, minimum=3, colluding=1)
        >>> len(terms.digest())
        32
        >>> Terms(run="r", server_round=1, attempt=0, length=10, minimum=3, colluding=2)
        Traceback (most recent call last):
        ...
        dp_fedmed.errors.MaskingRefused: a sum of 3 contributions with 2 colluding clients ...
    """

    run: str
    server_round: int
    attempt: int
    length: int
    minimum: int
    colluding: int

    def __post_init__(self) -> None:
        if not self.run or self.server_round < 0 or self.attempt < 0 or self.length < 1:
            raise MaskingRefused(
                f"an attempt at secure aggregation needs a run, a round, a number and a length, "
                f"and has {self}"
            )
        if self.colluding < 0 or self.minimum - self.colluding < 2:
            raise MaskingRefused(
                f"a sum of {self.minimum} contributions with {self.colluding} colluding clients "
                "hides nobody: at least two contributions must be of clients that do not collude"
            )
