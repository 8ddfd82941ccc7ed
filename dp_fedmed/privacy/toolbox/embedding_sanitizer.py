"""Releasing embedding rows with noise, with the unit said aloud: one image and all of its rows.

Clipping rows to C and adding noise "for sensitivity C" protects neither an image (it owns many
rows) nor a row (replacing it moves it by 2C). Here one call protects one image that owns at most
k of the rows given, whose replacement moves the matrix by at most 2C√k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.accounting.history import History
from dp_fedmed.privacy.mechanisms.clipping import clip_l2_rows
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.privacy.toolbox.mechanisms import GaussianMechanism

RowSelection = Literal["random", "all"]
_SELECTIONS: Final = ("random", "all")


@dataclass(frozen=True, kw_only=True, slots=True)
class DPConfig:
    """How embeddings are sanitized; validated only when enabled.

    Attributes:
        enabled: Whether to clip and add noise at all.
        epsilon: ε of one call, for one image, in [0.1, 10].
        delta: δ of one call.
        clipping_norm: C, the L2 norm to which each row is clipped.
        max_rows_per_image: k, the most rows that one image may own in a call. It has no default:
            without it no ε could be stated.
        row_selection: How an image's rows were chosen: ``random`` (at most k, as by
            ``select_rows``) or ``all``. Selection that looks at the data, such as a greedy
            coreset, lets one image change every row and has no guarantee here.
    """

    enabled: bool = False
    epsilon: float = 1.0
    delta: float = 1e-5
    clipping_norm: float = 1.0
    max_rows_per_image: int | None = None
    row_selection: RowSelection = "random"

    def __post_init__(self) -> None:
        if not _validate.flag("enabled", self.enabled):
            return
        if self.max_rows_per_image is None:
            raise ValueError(
                "max_rows_per_image must be given when enabled: one image owns that many rows, and"
                " epsilon means nothing without it (e.g. max_rows_per_image=4)"
            )
        _validate.count("max_rows_per_image", self.max_rows_per_image)
        if self.row_selection not in _SELECTIONS:
            raise ValueError(
                f"row_selection must be 'random' or 'all', got {self.row_selection!r}: selection"
                " that depends on the embeddings (greedy, coreset) lets one image change every row"
            )
        _validate.positive("clipping_norm", self.clipping_norm)
        # The mechanism checks ε and δ, and would refuse them later otherwise.
        GaussianMechanism(epsilon=self.epsilon, delta=self.delta, sensitivity=1.0)


class EmbeddingSanitizer:
    """Clips embedding rows and adds Gaussian noise; composes over its calls.

    The number of rows and which image owns which must not depend on the embeddings.

    Example:
        >>> sanitizer = EmbeddingSanitizer(
        ...     DPConfig(enabled=True, epsilon=2.0, max_rows_per_image=4))
        >>> noisy = sanitizer.sanitize(np.ones((8, 16), dtype=np.float32))
        >>> noisy.shape, round(sanitizer.noise_std, 2)
        ((8, 16), 7.98)
        >>> spent = sanitizer.get_privacy_spent()
        >>> spent["epsilon"], spent["unit"], spent["sensitivity"]
        (2.0, 'image with at most 4 rows', 4.0)
    """

    def __init__(self, config: DPConfig) -> None:
        if not isinstance(config, DPConfig):
            raise TypeError(f"config must be a DPConfig, got {type(config).__name__}")
        self.config = config
        self._mechanism: GaussianMechanism | None = None
        if config.enabled:
            self._mechanism = GaussianMechanism(
                epsilon=config.epsilon, delta=config.delta, sensitivity=self.sensitivity
            )
        self._calls = self._rows = self._clipped = self._nonfinite = 0
        self._norm_sums = (0.0, 0.0)

    @property
    def sensitivity(self) -> float:
        """2C√k: how far replacing one image moves the clipped rows."""
        if self.config.max_rows_per_image is None:
            raise ValueError("the sensitivity of one image needs max_rows_per_image")
        return 2.0 * self.config.clipping_norm * math.sqrt(self.config.max_rows_per_image)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in each coordinate; 0 when disabled."""
        return 0.0 if self._mechanism is None else self._mechanism.sigma

    @property
    def is_private(self) -> bool:
        """False once a public seed was used."""
        return self._mechanism is None or self._mechanism.is_private

    def clip_embeddings(self, embeddings: ArrayLike) -> tuple[NDArray[Any], int, float, float]:
        """Clip each row to C, without noise.

        Returns:
            ``(clipped, num_clipped, avg_norm_before, avg_norm_after)``; rows with NaN or infinite
            values become zero, count as clipped and are left out of the norm before. The figures
            describe private data: they are for the data's holder, not for release.
        """
        clipped = clip_l2_rows(np.asarray(embeddings), max_norm=self.config.clipping_norm)
        before = clipped.norms_before[np.isfinite(clipped.norms_before)]
        average_before = float(before.mean()) if before.size else 0.0
        average_after = float(clipped.norms_after.mean()) if len(clipped.norms_after) else 0.0
        return clipped.rows, clipped.num_clipped, average_before, average_after

    def select_rows(
        self,
        image_ids: ArrayLike,
        seed: int | None = None,
        *,
        stream: NoiseStream | None = None,
    ) -> NDArray[np.intp]:
        """Indices of at most k rows per image, drawn without looking at the embeddings."""
        if self.config.max_rows_per_image is None:
            raise ValueError("select_rows needs max_rows_per_image")
        ids = np.asarray(image_ids).reshape(-1)
        if stream is None:
            stream = NoiseStream.fresh() if seed is None else NoiseStream.from_public_seed(seed)
        chosen = [
            stream.generator.permutation(np.flatnonzero(ids == image))[
                : self.config.max_rows_per_image
            ]
            for image in np.unique(ids)
        ]
        return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.intp)

    def sanitize(
        self,
        embeddings: ArrayLike,
        seed: int | None = None,
        *,
        image_ids: ArrayLike | None = None,
        stream: NoiseStream | None = None,
    ) -> NDArray[Any]:
        """Clipped and noised rows of the same shape and dtype; a plain copy when disabled.

        Args:
            embeddings: Matrix of shape (rows, dimension).
            seed: A public seed, for tests: the result is not private.
            image_ids: Which image owns each row. When given, the cap is checked, not trusted.
            stream: Secret randomness of a run; a fresh one by default.
        """
        rows = np.asarray(embeddings)
        if self._mechanism is None:
            self._calls += 1
            return rows.copy()
        if image_ids is not None:
            self._check_cap(np.asarray(image_ids).reshape(-1), len(rows))
        clipped = clip_l2_rows(rows, max_norm=self.config.clipping_norm)
        noisy = self._mechanism.add_noise(clipped.rows, seed, stream=stream)
        self._calls += 1
        self._rows += len(rows)
        self._clipped += clipped.num_clipped
        self._nonfinite += clipped.num_nonfinite
        finite = clipped.norms_before[np.isfinite(clipped.norms_before)]
        before, after = self._norm_sums
        self._norm_sums = (before + float(finite.sum()), after + float(clipped.norms_after.sum()))
        return np.asarray(noisy)

    def _check_cap(self, ids: NDArray[Any], num_rows: int) -> None:
        if len(ids) != num_rows:
            raise ValueError(f"image_ids has {len(ids)} entries for {num_rows} rows")
        names, counts = np.unique(ids, return_counts=True)
        cap = self.config.max_rows_per_image or 0
        if counts.size and counts.max() > cap:
            worst = int(np.argmax(counts))
            raise ValueError(
                f"image {names[worst]!r} owns {counts[worst]} rows but max_rows_per_image={cap};"
                " select rows with select_rows(image_ids), or raise the cap (and the noise)"
            )

    def get_stats(self) -> dict[str, Any]:
        """Counts and average norms over all calls; about private data, not for release."""
        rows = max(self._rows, 1)
        finite_rows = max(self._rows - self._nonfinite, 1)
        return {
            "enabled": self.config.enabled,
            "num_sanitizations": self._calls,
            "num_rows": self._rows,
            "num_clipped": self._clipped,
            "num_nonfinite": self._nonfinite,
            "clip_fraction": self._clipped / rows,
            "avg_norm_before": self._norm_sums[0] / finite_rows,
            "avg_norm_after": self._norm_sums[1] / rows,
            "noise_std": self.noise_std,
            "is_private": self.is_private,
        }

    def event(self) -> PrivacyEvent | None:
        """What was spent so far, for a ledger; ``None`` if nothing was (or is protected)."""
        if self._mechanism is None or self._calls == 0:
            return None
        return self._mechanism.event(unit="record", adjacency="replace_one", count=self._calls)

    def get_privacy_spent(self) -> dict[str, Any]:
        """(ε, δ) for one image over all calls so far, composed exactly, with what it assumes.

        Calls are taken to be about the same images. Disabled, raw rows were released: ε is
        infinite from the first call on.
        """
        event = self.event()
        if event is None:
            epsilon = 0.0 if self._calls == 0 else math.inf
        else:
            epsilon = self.config.epsilon
            if self._calls > 1:
                epsilon = History([event]).epsilon(delta=self.config.delta, method="exact")
        cap = self.config.max_rows_per_image
        return {
            "epsilon": epsilon,
            "delta": self.config.delta,
            "unit": "none" if event is None and self._calls else f"image with at most {cap} rows",
            "adjacency": "replace_one",
            "sensitivity": None if cap is None else self.sensitivity,
            "row_selection": self.config.row_selection,
            "num_sanitizations": self._calls,
            "is_private": self.is_private,
        }
