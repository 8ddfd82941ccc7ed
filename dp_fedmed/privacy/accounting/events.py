"""``PrivacyEvent``: what one mechanism spent, as a value that samplers make and accountants read.

It is responsible for one guarantee: an event whose unit, neighbouring relation and sampler have
no valid privacy analysis here cannot be constructed, so no accountant can be asked about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, NotRequired, TypedDict, Unpack

from dp_fedmed.privacy import _validate

Unit = Literal["record", "client"]
Adjacency = Literal["add_remove", "zero_out", "replace_one"]
Sampling = Literal["poisson", "full", "without_replacement", "none"]

UNITS: Final = ("record", "client")
ADJACENCIES: Final = ("add_remove", "zero_out", "replace_one")
SAMPLINGS: Final = ("poisson", "full", "without_replacement", "none")

#: How accountants see an event: which analysis, with which σ and q.
MechanismKey = tuple[Literal["poisson", "without_replacement"], float, float]
#: How accountants see a history: the steps of each kind.
Steps = Mapping[MechanismKey, int]


class Level(StrEnum):
    """The two guarantees by the configuration's words: `privacy.sample` and `privacy.user`.

    >>> Level.sample.unit, Level.user.unit
    ('record', 'client')
    """

    sample = "sample"
    user = "user"

    @property
    def unit(self) -> Unit:
        """What is protected at this level."""
        return "record" if self is Level.sample else "client"


class _Fields(TypedDict):
    """What every kind of event is made of."""

    unit: Unit
    noise_multiplier: float
    count: NotRequired[int]
    is_private: NotRequired[bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyEvent:
    """``count`` Gaussian releases of a sum of clipped contributions, one per unit.

    Prefer the named constructors ``poisson``, ``full``, ``fixed_size`` and ``unsampled``; a
    sampler returns one of them together with the cohort it drew.

    | sampling | adjacency | accounted as |
    |---|---|---|
    | poisson, rate q | add_remove, zero_out | sampled Gaussian (σ, q) |
    | full, none | add_remove, zero_out | Gaussian σ |
    | full, none | replace_one | Gaussian σ/2: a replacement moves the sum by 2C |
    | without_replacement, k of n | zero_out | Gaussian σ, no amplification |
    | without_replacement, k of n | replace_one | amplified Gaussian σ/2 (Wang et al. 2019) |

    Attributes:
        unit: What is protected: one ``record`` or one whole ``client``.
        adjacency: How neighbouring data sets differ in one unit.
        sampling: How the units of a step were chosen. ``full``: all take part. ``none``: chosen
            by a rule that depends on no data, for which no amplification is claimed.
        noise_multiplier: σ, the noise's standard deviation over the clipping norm C.
        count: How many such steps.
        sample_rate: q, for ``poisson`` only.
        cohort_size: k, for ``without_replacement`` only.
        population: n, for ``without_replacement`` only.
        is_private: False when the noise came from a public seed; it travels into every report.

    Example:
        >>> event = PrivacyEvent.poisson(
        ...     unit="record", noise_multiplier=1.0, sample_rate=0.01, count=100)
        >>> PrivacyEvent.from_json(event.to_json()) == event
        True
        >>> event.times(3).count
        300
    """

    unit: Unit
    adjacency: Adjacency
    sampling: Sampling
    noise_multiplier: float
    count: int = 1
    sample_rate: float | None = None
    cohort_size: int | None = None
    population: int | None = None
    is_private: bool = True

    def __post_init__(self) -> None:
        _validate.choice("unit", self.unit, UNITS)
        _validate.choice("adjacency", self.adjacency, ADJACENCIES)
        _validate.choice("sampling", self.sampling, SAMPLINGS)
        _validate.flag("is_private", self.is_private)
        self._check("noise_multiplier", _validate.noise_multiplier)
        self._check("count", _validate.count)
        self._check_sampling_fields()
        self._check_adjacency()

    def _check(self, name: str, check: Callable[[str, Any], float]) -> None:
        object.__setattr__(self, name, check(name, getattr(self, name)))

    def _check_sampling_fields(self) -> None:
        wanted = {"poisson": ("sample_rate",), "without_replacement": ("cohort_size", "population")}
        needed = wanted.get(self.sampling, ())
        for name in ("sample_rate", "cohort_size", "population"):
            given = getattr(self, name) is not None
            if given != (name in needed):
                verb = "does not take" if given else "needs"
                raise ValueError(f"sampling={self.sampling!r} {verb} {name}")
        if self.sampling == "poisson":
            self._check("sample_rate", _validate.sample_rate)
        if self.sampling == "without_replacement":
            self._check("cohort_size", _validate.count)
            self._check("population", _validate.count)
            if self.cohort_size > self.population:  # type: ignore[operator]
                raise ValueError(
                    f"cohort_size={self.cohort_size} exceeds population={self.population};"
                    " without replacement, at most everyone takes part"
                )

    def _check_adjacency(self) -> None:
        if self.sampling == "poisson" and self.adjacency == "replace_one":
            raise ValueError(
                "sampling='poisson' with adjacency='replace_one' has no analysis here;"
                " use adjacency='add_remove' or 'zero_out'"
            )
        if self.sampling == "without_replacement" and self.adjacency == "add_remove":
            raise ValueError(
                "sampling='without_replacement' fixes the population, so adjacency='add_remove'"
                " does not apply; use 'zero_out' (no amplification) or 'replace_one' (with σ/2)"
            )

    @classmethod
    def poisson(
        cls, *, sample_rate: float, adjacency: Adjacency = "add_remove", **fields: Unpack[_Fields]
    ) -> PrivacyEvent:
        """Each unit takes part independently with probability ``sample_rate``."""
        return cls(sampling="poisson", sample_rate=sample_rate, adjacency=adjacency, **fields)

    @classmethod
    def full(
        cls, *, adjacency: Adjacency = "add_remove", **fields: Unpack[_Fields]
    ) -> PrivacyEvent:
        """Every unit takes part in every step."""
        return cls(sampling="full", adjacency=adjacency, **fields)

    @classmethod
    def fixed_size(
        cls, *, cohort_size: int, population: int, adjacency: Adjacency, **fields: Unpack[_Fields]
    ) -> PrivacyEvent:
        """Exactly ``cohort_size`` of ``population`` units, uniformly without replacement."""
        size = {"cohort_size": cohort_size, "population": population}
        return cls(sampling="without_replacement", adjacency=adjacency, **size, **fields)

    @classmethod
    def unsampled(cls, *, adjacency: Adjacency, **fields: Unpack[_Fields]) -> PrivacyEvent:
        """Units chosen by a data-independent rule for which no amplification is claimed."""
        return cls(sampling="none", adjacency=adjacency, **fields)

    @property
    def key(self) -> MechanismKey:
        """The analysis that accounts for this event, with its σ and q.

        Example:
            >>> PrivacyEvent.full(
            ...     unit="client", noise_multiplier=2.0, adjacency="replace_one").key
            ('poisson', 1.0, 1.0)
        """
        sigma = self.noise_multiplier
        if self.sampling == "poisson" and self.sample_rate is not None:
            return ("poisson", sigma, self.sample_rate)
        if self.adjacency != "replace_one":
            return ("poisson", sigma, 1.0)
        if not self.cohort_size or not self.population or self.cohort_size == self.population:
            return ("poisson", sigma / 2.0, 1.0)
        return ("without_replacement", sigma, self.cohort_size / self.population)

    def times(self, count: int) -> PrivacyEvent:
        """The same event repeated ``count`` times."""
        return dataclasses.replace(self, count=self.count * _validate.count("count", count))

    def to_json(self) -> dict[str, Any]:
        """A JSON object without empty fields; floats survive exactly."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) is not None
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PrivacyEvent:
        """Rebuild an event; unknown, missing or invalid fields raise ``ValueError``.

        Example:
            >>> PrivacyEvent.from_json({"unit": "record"})
            Traceback (most recent call last):
            ...
            ValueError: not a privacy event: missing adjacency, count, is_private, ...
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"not a privacy event: expected an object, got {type(data).__name__}")
        known = {field.name for field in dataclasses.fields(cls)}
        required = known - {"sample_rate", "cohort_size", "population"}
        unknown = sorted(str(name) for name in data if name not in known)
        missing = sorted(name for name in required if name not in data)
        if unknown or missing:
            parts = [f"missing {', '.join(missing)}"] if missing else []
            parts += [f"unknown {', '.join(unknown)}"] if unknown else []
            raise ValueError(f"not a privacy event: {'; '.join(parts)}")
        try:
            return cls(**data)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a privacy event: {error}") from error


def record_event(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    adjacency: Adjacency = "zero_out",
    is_private: bool = True,
) -> PrivacyEvent:
    """`steps` noised sums of a client's records: all of them in each, or Poisson batches."""
    is_full = sample_rate == 1.0
    return PrivacyEvent(
        unit="record",
        adjacency=adjacency,
        sampling="full" if is_full else "poisson",
        noise_multiplier=noise_multiplier,
        count=steps,
        sample_rate=None if is_full else sample_rate,
        is_private=is_private,
    )
