"""Records and sums on their way between a pool and its workers: pipes and shared memory.

What is small goes through a pipe; the bytes of arrays lie in memory that both sides see.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from dp_fedmed.federation.flower_compat import make_array

Described = list[tuple[str, str, Any]]
_BROADCAST = "broadcast"


@dataclass(frozen=True)
class Parcel:
    """Records taken apart: `entries` describe them, `buffers` hold the bytes of their arrays."""

    entries: Described
    buffers: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(map(len, self.buffers))


def take_apart(records: RecordDict, shared: ArrayRecord | None = None) -> Parcel:
    """Describe records with plain values; `shared` is mentioned, not copied."""
    entries: Described = []
    buffers: list[bytes] = []
    for key, record in records.items():
        if record is shared:
            entries.append((key, _BROADCAST, None))
        elif isinstance(record, ArrayRecord):
            entries.append((key, "arrays", [(n, a.dtype, a.shape) for n, a in record.items()]))
            buffers.extend(array.data for array in record.values())
        else:
            kind = "config" if isinstance(record, ConfigRecord) else "metrics"
            entries.append((key, kind, dict(record)))
    return Parcel(entries, buffers)


def put_together(
    entries: Described, buffers: Sequence[bytes], shared: ArrayRecord | None = None
) -> RecordDict:
    """The records that `take_apart` described.

    >>> parcel = take_apart(RecordDict({"c": ConfigRecord({"round": 3})}))
    >>> put_together(parcel.entries, parcel.buffers)["c"]["round"]
    3
    """
    remaining = iter(buffers)
    records = RecordDict()
    for key, kind, payload in entries:
        if kind == _BROADCAST:
            if shared is None:
                raise ValueError("a message refers to a broadcast model that was not sent")
            records[key] = shared
        elif kind == "arrays":
            records[key] = ArrayRecord(
                {name: make_array(dtype, shape, next(remaining)) for name, dtype, shape in payload}
            )
        else:
            records[key] = (ConfigRecord if kind == "config" else MetricRecord)(payload)
    return records


class Arena:
    """A piece of memory that this process shares with the workers it forks."""

    def __init__(self, size: int) -> None:
        self.size = max(size, mmap.PAGESIZE)
        self._memory = mmap.mmap(-1, self.size)

    def fits(self, parcel: Parcel) -> bool:
        """Whether the parcel's bytes have room here."""
        return parcel.size <= self.size

    def write(self, buffers: Sequence[bytes]) -> list[int]:
        """Lay buffers end to end; returns their lengths."""
        offset = 0
        for data in buffers:
            self._memory[offset : offset + len(data)] = data
            offset += len(data)
        return [len(data) for data in buffers]

    def read(self, lengths: Sequence[int]) -> list[bytes]:
        """Copies of the buffers that were written with these lengths."""
        buffers, offset = [], 0
        for length in lengths:
            buffers.append(self._memory[offset : offset + length])
            offset += length
        return buffers

    def integers(self, size: int) -> NDArray[np.int64]:
        """The first so many int64 here, as they are; let go of them before `close`."""
        return np.frombuffer(self._memory, np.int64, size)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
