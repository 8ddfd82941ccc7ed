"""One release, computed many times with and without one unit: is it hidden as well as accounted?

A step whose noise multiplier is σ must keep any two neighbouring inputs 1/σ-GDP apart, for any
network and any record. Here the records that move the release most are searched with the noise off,
then the product's own code releases them many times with its own noise, and a threshold that was
fixed before the first of these releases tells the two apart as well as it can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.auditing import gaussian_lower_bound
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream, Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams

Arrays = dict[str, NDArray[np.float64]]

THRESHOLD = 0.5  # half-way between the two noise-free releases
NOISE_DRAWS = 4  # releases from which each array's noise is estimated, before any guess
LEAST = 1e-12  # of the variance of all arrays, that one counts as having


class ReleaseSource(Protocol):
    """Computes one release for each of a few numbered inputs; input 0 is without the canary."""

    name: str
    bound: float  # how far neighbouring inputs may move the release, as it is accounted
    inputs: int
    replaces: bool  # neighbours differ by another canary, not by none
    draws: int  # how often it is computed to know its mean, where more than noise is random

    def release(self, number: int, secrets: RoundStreams) -> Arrays:
        """The noised sum of an input; may raise if the network cannot take it."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two neighbouring inputs of a source, and what they differ by with the noise off."""

    source: ReleaseSource
    absent: int
    present: int
    base: Arrays  # the noise-free release of `absent`
    difference: Arrays  # that of `present` minus it

    @property
    def moved(self) -> float:
        """The norm of the difference, relative to the bound that is accounted."""
        return _norm(self.difference) / self.source.bound


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the releases of a pair gave. But for noise, a score is 0 if absent, 1 if present."""

    scores: NDArray[np.float64]
    present: NDArray[np.bool_]

    @property
    def correct(self) -> int:
        """Releases on the right side of the threshold."""
        return int(((self.scores > THRESHOLD) == self.present).sum())

    def mu(self, confidence: float) -> float:
        """The releases are not μ-GDP for any smaller μ, at this confidence."""
        return self._mu(self.scores > THRESHOLD, confidence)

    def largest_mu(self, confidence: float) -> float:
        """What as many releases could show, all guessed right."""
        return self._mu(self.present, confidence)

    def _mu(self, guessed: NDArray[np.bool_], confidence: float) -> float:
        return gaussian_lower_bound(
            hits=int(guessed[self.present].sum()),
            present=int(self.present.sum()),
            false_alarms=int(guessed[~self.present].sum()),
            absent=int((~self.present).sum()),
            confidence=confidence,
        )


class _Silence(NoiseStream):
    """A noise stream of zeros."""

    def normal(
        self, shape: int | tuple[int, ...], *, dtype: DTypeLike = np.float64, **settings: Any
    ) -> NDArray[Any]:
        """Zeros."""
        return np.zeros(shape, dtype=dtype)

    def fill_normal(self, out: NDArray[Any], *, threads: int | None = None) -> None:
        """Zeros."""
        out[...] = 0


class _QuietSecrets(RoundStreams):
    """The streams of a round without noise; all others are as in a run."""

    def noise(self, purpose: Purpose, exact: list[Any], step: int = 0) -> NoiseStream:
        """No noise."""
        return _Silence(bytes(32), is_private=False)


def fresh_secrets(name: str, key: NoiseKey | None = None) -> RoundStreams:
    """The streams of a round, by a key that was never used, or by a given one."""
    return _secrets(RoundStreams, name, key or NoiseKey.generate())


def _secrets(kind: type[RoundStreams], name: str, key: NoiseKey) -> RoundStreams:
    digest = hashlib.sha256(b"audit").digest()
    return kind(key=key, run="audit", server_round=1, digest=digest, client=name)


def worst_pair(source: ReleaseSource, advance: Callable[[], None] = lambda: None) -> Pair | None:
    """The neighbouring inputs that move a release most, with the noise off; None if none moves it.

    What else the streams choose is averaged over the same keys for all inputs. Inputs that the
    network cannot take, or that make no finite release, are left out.
    """
    found: dict[int, Arrays] = {}
    keys = [NoiseKey.generate() for _ in range(source.draws)]
    for number in range(source.inputs):
        try:
            made = [source.release(number, _secrets(_QuietSecrets, source.name, k)) for k in keys]
            release = {name: np.mean([each[name] for each in made], axis=0) for name in made[0]}
        except (RuntimeError, ValueError, IndexError):
            if number == 0:
                raise
            continue
        finally:
            advance()
        if all(np.isfinite(value).all() for value in release.values()):
            found[number] = release
    canaries = [number for number in found if number > 0]
    firsts = canaries if source.replaces else [number for number in found if number == 0]
    pairs = ((a, b) for a in firsts for b in canaries if a != b)
    best = max(pairs, key=lambda pair: _norm(_minus(found[pair[1]], found[pair[0]])), default=None)
    if best is None:
        return None
    absent, present = best
    return Pair(
        source=source,
        absent=absent,
        present=present,
        base=found[absent],
        difference=_minus(found[present], found[absent]),
    )


def worst_of(sources: Sequence[ReleaseSource], advance: Callable[[], None] = lambda: None) -> Pair:
    """The pair that moves a release most, of several sources.

    Raises:
        ConfigError: if nothing that was tried moves any of them.
    """
    pairs = [pair for source in sources if (pair := worst_pair(source, advance)) is not None]
    pair = max(pairs, key=lambda each: each.moved, default=None)
    if pair is None or pair.moved == 0.0:
        raise ConfigError(
            f"{sources[0].name}: no record that was tried moves what is released, so there is "
            "nothing to attack: is anything trained?"
        )
    return pair


def attack(pair: Pair, trials: int, advance: Callable[[], None] = lambda: None) -> Seen:
    """Release a pair's inputs in turn, each time with new secrets, and score what comes out."""
    weights = _weights(pair)
    scale = _dot(pair.difference, weights)
    present = np.arange(trials) % 2 == 1
    scores = np.zeros(trials)
    for number, is_present in enumerate(present):
        shown = _noised(pair, is_present)
        scores[number] = _dot(_minus(shown, pair.base), weights) / scale
        advance()
    return Seen(scores=np.nan_to_num(scores), present=present)


def _noised(pair: Pair, is_present: bool) -> Arrays:
    number = pair.present if is_present else pair.absent
    return pair.source.release(number, fresh_secrets(pair.source.name))


def _weights(pair: Pair) -> Arrays:
    """The direction of the difference, where an array with far less noise counts accordingly more.

    Which it is, is learnt from releases that no guess is made about.
    """
    draws = [_minus(_noised(pair, False), pair.base) for _ in range(NOISE_DRAWS)]
    own = {name: _square([draw[name] for draw in draws]) for name in pair.difference}
    whole = _square([draw[name] for draw in draws for name in own if own[name] > 0.0]) or 1.0
    return {
        name: value / (whole if own[name] > 0.25 * whole else max(own[name], LEAST * whole))
        for name, value in pair.difference.items()
    }


def _square(values: Sequence[NDArray[np.float64]]) -> float:
    """The mean square of all numbers."""
    flat = [value.reshape(-1) for value in values]
    return sum(float(value @ value) for value in flat) / max(1, sum(value.size for value in flat))


def _minus(a: Arrays, b: Arrays) -> Arrays:
    return {name: a[name] - b[name] for name in a}


def _dot(a: Arrays, b: Arrays) -> float:
    return sum(float(a[name].reshape(-1) @ b[name].reshape(-1)) for name in a)


def _norm(a: Arrays) -> float:
    return float(np.sqrt(_dot(a, a)))
