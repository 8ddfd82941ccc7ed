"""Secret randomness: a 256-bit key of the operating system, and streams derived from it.

Two guarantees are kept here. Different inputs never share a stream (so noise is never reused),
equal inputs always do (so recomputing after a crash reveals nothing new). Both are computational:
they rest on HMAC-SHA256 and ChaCha20 being pseudo-random.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray
from randomgen import ChaCha

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.streams.keys import KEY_BYTES, SecretKey, array_digest, length_prefixed

#: Values per ChaCha20 counter range. The layout of a stream depends on it, on no thread count.
_CHUNK: Final = 1 << 19

NormalMethod = Literal["ziggurat", "sum_of_four"]


def public_digest(
    *, arrays: Iterable[NDArray[Any]] = (), config: Mapping[str, Any] | None = None
) -> bytes:
    """32 bytes over the model that was sent and the config in force (σ, C, q, lr, …).

    Example:
        >>> one = public_digest(arrays=[np.zeros(3)], config={"sigma": 1.0, "C": 1.0})
        >>> two = public_digest(arrays=[np.zeros(3)], config={"C": 1.0, "sigma": 1.0})
        >>> one == two, len(one)
        (True, 32)
    """
    text = json.dumps(dict(config or {}), sort_keys=True, allow_nan=False, ensure_ascii=True)
    return hashlib.sha256(
        length_prefixed([b"dp_fedmed public digest v1", array_digest(arrays), text.encode()])
    ).digest()


class Purpose(Enum):
    """What a stream is for. Noise depends on the data it hides, sampling must not."""

    COHORT = "cohort"
    BATCH = "batch"
    ROW_SELECTION = "row-selection"
    RECORD_NOISE = "record-noise"
    CLIENT_NOISE = "client-noise"
    CLIPPING_NOISE = "clipping-noise"
    STATISTIC_NOISE = "statistic-noise"
    EMBEDDING_NOISE = "embedding-noise"

    @property
    def is_noise(self) -> bool:
        """Whether streams of this purpose hide data, and so need a private digest."""
        return self.value.endswith("-noise")


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamId:
    """The inputs that a stream is a function of, besides the key.

    Attributes:
        run: The run's name.
        phase: Counts declared changes of data or guarantee parameters within a run.
        purpose: What is drawn.
        round_num: The round.
        public_digest: 32 bytes over the model sent and the resolved config: ``public_digest()``.
        client: A client's name; ``None`` for the server.
        step: The step within the round.
        private_digest: 32 bytes over the exact clipped sum about to be noised:
            ``NoiseKey.private_digest``. Noise needs it; sampling refuses it, since a cohort that
            depended on the data would void the amplification.
    """

    run: str
    phase: int
    purpose: Purpose
    round_num: int
    public_digest: bytes
    client: str | None = None
    step: int = 0
    private_digest: bytes | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.purpose, Purpose):
            raise TypeError(f"purpose must be a Purpose, got {self.purpose!r}")
        if not isinstance(self.run, str) or not self.run:
            raise TypeError(f"run must be a non-empty name, got {self.run!r}")
        if self.client is not None and (not isinstance(self.client, str) or not self.client):
            raise TypeError(f"client must be a non-empty name or None, got {self.client!r}")
        for name in ("phase", "round_num", "step"):
            object.__setattr__(self, name, _validate.count(name, getattr(self, name), minimum=0))
        _check_digest("public_digest", self.public_digest)
        if self.purpose.is_noise:
            if self.private_digest is None:
                raise ValueError(
                    f"purpose {self.purpose.value!r} needs a private_digest: without it, two"
                    " different sums would be hidden by the same noise"
                )
            _check_digest("private_digest", self.private_digest)
        elif self.private_digest is not None:
            raise ValueError(
                f"purpose {self.purpose.value!r} refuses a private_digest: sampling that depends"
                " on the data has no amplification"
            )

    def encode(self) -> bytes:
        """An unambiguous encoding: every field with its length, absent apart from empty."""
        fields: list[bytes | None] = [
            self.run.encode(),
            str(self.phase).encode(),
            self.purpose.value.encode(),
            str(self.round_num).encode(),
            None if self.client is None else self.client.encode(),
            str(self.step).encode(),
            self.public_digest,
            self.private_digest,
        ]
        return length_prefixed([b"dp_fedmed stream v1", *fields])


class NoiseKey(SecretKey):
    """A 256-bit secret that cannot be printed, copied or pickled.

    Example:
        >>> key = NoiseKey.generate()
        >>> key
        NoiseKey(<hidden>, is_private=True)
        >>> stream = key.stream(StreamId(
        ...     run="demo", phase=0, purpose=Purpose.COHORT, round_num=1,
        ...     public_digest=public_digest(config={"q": 0.1})))
        >>> stream.generator.random(3).shape
        (3,)
        >>> key.destroy()
        >>> key.derive("client", "lyon")
        Traceback (most recent call last):
        ...
        RuntimeError: this noise key was destroyed; a finished run can only be extended as a new ...
    """

    __slots__ = ("_is_private",)
    _header = b"dp_fedmed noise key v1\n"
    _what = "noise key"

    def __init__(self, secret: bytes, *, is_private: bool = True) -> None:
        super().__init__(secret)
        self._is_private = _validate.flag("is_private", is_private)

    @classmethod
    def from_public_seed(cls, seed: int) -> NoiseKey:
        """A reproducible key for tests and papers: everything drawn from it is **not private**."""
        number = _validate.count("seed", seed, minimum=0)
        digest = hashlib.sha256(length_prefixed([b"public seed", str(number).encode()])).digest()
        return cls(digest, is_private=False)

    @property
    def is_private(self) -> bool:
        """False for a key made from a public seed."""
        return self._is_private

    def derive(self, *names: str) -> NoiseKey:
        """A key for a part of the system, e.g. one simulated client; as private as this one."""
        return NoiseKey(self._derived(*names), is_private=self._is_private)

    def private_digest(self, arrays: Iterable[NDArray[Any]]) -> bytes:
        """Keyed digest of arrays; a plain hash of an un-noised sum would itself be a release."""
        return self._mac(b"dp_fedmed private digest v1" + array_digest(arrays))

    def stream(self, stream_id: StreamId) -> NoiseStream:
        """The stream of these inputs."""
        return NoiseStream(self._mac(stream_id.encode()), is_private=self._is_private)

    def __repr__(self) -> str:
        return f"NoiseKey(<hidden>, is_private={self._is_private})"


class NoiseStream:
    """A numpy ``Generator`` on ChaCha20 that knows whether it is private.

    Example:
        >>> stream = NoiseStream.from_public_seed(7)
        >>> noise = stream.normal((2, 3), std=0.5, dtype=np.float32)
        >>> noise.shape, str(noise.dtype), stream.is_private
        ((2, 3), 'float32', False)
    """

    __slots__ = ("_generator", "_is_private", "_key", "_lock", "_next_chunk")

    def __init__(self, key: bytes, *, is_private: bool) -> None:
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise ValueError(f"a stream's key is {KEY_BYTES} bytes; use NoiseKey.stream()")
        self._key = int.from_bytes(key, "little")
        self._is_private = _validate.flag("is_private", is_private)
        self._generator: np.random.Generator | None = None
        # Counter range 0 belongs to ``generator``; each further one to a chunk of normals.
        self._next_chunk = 1
        self._lock = threading.Lock()

    @classmethod
    def fresh(cls) -> NoiseStream:
        """A stream that nobody can reproduce."""
        return cls(os.urandom(KEY_BYTES), is_private=True)

    @classmethod
    def from_public_seed(cls, seed: int) -> NoiseStream:
        """A reproducible stream for tests: not private."""
        return cls(bytes(NoiseKey.from_public_seed(seed)._secret), is_private=False)

    @property
    def is_private(self) -> bool:
        """False if the stream goes back to a public seed."""
        return self._is_private

    @property
    def generator(self) -> np.random.Generator:
        """For everything but bulk normals: cohorts, batches, permutations."""
        if self._generator is None:
            self._generator = self._at_range(0)
        return self._generator

    def _at_range(self, index: int) -> np.random.Generator:
        return np.random.Generator(ChaCha(key=self._key, counter=index << 64, rounds=20))

    def normal(
        self,
        shape: int | tuple[int, ...],
        *,
        std: float = 1.0,
        dtype: DTypeLike = np.float64,
        method: NormalMethod = "ziggurat",
    ) -> NDArray[Any]:
        """Normal noise of a given standard deviation.

        Args:
            shape: Shape of the result.
            std: Standard deviation, 0 or more.
            dtype: float32 or float64.
            method: ``sum_of_four`` draws four float64 values for each and halves their sum, so
                that a released low-order bit pattern no longer identifies the draw (Holohan &
                Braghin 2021, "Secure random sampling in differential privacy"); four times slower.
        """
        _validate.choice("method", method, ("ziggurat", "sum_of_four"))
        scale = _validate.non_negative("std", std)
        kind = np.dtype(dtype)
        if method == "ziggurat":
            out = np.empty(shape, dtype=kind)
            self.fill_normal(out)
            out *= scale
            return out
        total = np.zeros(shape, dtype=np.float64)
        part = np.empty_like(total)
        for _ in range(4):
            self.fill_normal(part)
            total += part
        return (total * (0.5 * scale)).astype(kind, copy=False)

    def fill_normal(self, out: NDArray[Any], *, threads: int | None = None) -> None:
        """Fill a C-contiguous float32 or float64 array with standard normals, in place.

        Chunks have their own counter ranges, so the values do not depend on ``threads``.

        Args:
            out: Written over.
            threads: By default the CPUs of this process, at most 4; 1 for small arrays.
        """
        if out.dtype not in (np.float32, np.float64):
            raise TypeError(f"normals are drawn as float32 or float64, got dtype {out.dtype}")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("fill_normal needs a writeable C-contiguous array")
        flat = out.reshape(-1)
        chunks = -(-flat.size // _CHUNK)
        with self._lock:
            first = self._next_chunk
            self._next_chunk += chunks

        def fill(i: int) -> None:
            part = flat[i * _CHUNK : (i + 1) * _CHUNK]
            self._at_range(first + i).standard_normal(dtype=part.dtype.type, out=part)

        workers = min(chunks, 4, os.cpu_count() or 1) if threads is None else threads
        if workers <= 1 or chunks <= 1:
            for i in range(chunks):
                fill(i)
        else:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(fill, range(chunks)))

    def __repr__(self) -> str:
        return f"NoiseStream(<hidden>, is_private={self._is_private})"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a noise stream cannot be pickled or copied; derive it again from its key")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = _refuse  # type: ignore[assignment]


def _check_digest(name: str, value: object) -> None:
    if not isinstance(value, bytes) or len(value) != hashlib.sha256().digest_size:
        raise ValueError(f"{name} must be the 32 bytes of a digest, got {type(value).__name__}")
