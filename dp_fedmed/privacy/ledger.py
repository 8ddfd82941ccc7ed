"""An append-only file of records, each chained to the one before by a keyed hash.

It is responsible for one guarantee: what was once written cannot be changed, reordered or cut out
of the middle without the key. Cutting off the *end* is noticed by whoever remembers a later head
(a checkpoint, a client's own ledger, a shared data ledger).
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dp_fedmed.errors import LedgerError
from dp_fedmed.privacy.streams.keys import MacKey, sync_folder

_GENESIS: Final = b"dp_fedmed ledger v1"
_SEAL: Final = re.compile(rb',"mac":"([0-9a-f]{64})"\}')
_SEAL_BYTES: Final = len(',"mac":""}') + 64


@dataclass(frozen=True, slots=True)
class Head:
    """Where a ledger stood: the number of its last record, and that record's keyed hash."""

    number: int
    mac: str


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a ledger."""

    number: int
    kind: str
    body: Mapping[str, Any]
    mac: str

    @property
    def head(self) -> Head:
        """The ledger's head when this record was its last."""
        return Head(self.number, self.mac)


class Ledger:
    """A hash-chained JSONL file.

    Several processes may hold one: every append first reads what others have added, under a lock.

    Args:
        path: the file; it need not exist yet.
        key: chains the records.
        durable: whether `append` waits for the disk unless told otherwise.

    Raises:
        LedgerError: if what the file holds is not a chain made with this key.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> key = MacKey.generate()
        >>> ledger = Ledger(Path(folder.name) / "ledger.jsonl", key)
        >>> ledger.append("CHARGE", {"round": 1}).number
        0
        >>> [r.body for r in Ledger(ledger.path, key).records]
        [{'round': 1}]
        >>> folder.cleanup()
    """

    def __init__(self, path: Path, key: MacKey, *, durable: bool = True) -> None:
        self.path, self._key, self._durable = Path(path), key, durable
        self.records: list[Record] = []
        self.torn = 0  # bytes of a last line that was never written to its end
        self._end = 0  # bytes of whole records read so far
        self._unended = False  # the last of them lacks its newline
        self._mac = key.mac(_GENESIS).hex()
        self.refresh()
        self.durable_head = self.head  # what a power cut cannot take away

    @property
    def head(self) -> Head | None:
        """The last record's number and hash; None for an empty ledger."""
        return self.records[-1].head if self.records else None

    def holds(self, head: Head) -> bool:
        """Whether the record that a head names is in this ledger."""
        return head.number < len(self.records) and hmac.compare_digest(
            self.records[head.number].mac, head.mac
        )

    def refresh(self) -> None:
        """Read and check what was appended since the last look."""
        try:
            with self._open(os.O_RDONLY) as descriptor:
                self._read(descriptor)
        except FileNotFoundError:
            if self._end:
                raise LedgerError(f"{self.path} is missing: restore it from a backup") from None

    def append(self, kind: str, body: Mapping[str, Any], *, durable: bool | None = None) -> Record:
        """Add a record; on disk before this returns, unless `durable` is false.

        Raises:
            LedgerError: if the file was shortened or changed by somebody else.
            OSError: if it cannot be written; an unfinished line is dropped by the next reader.
        """
        is_new = not self.path.exists()
        with self._open(os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            self._read(descriptor)
            record, line = self._seal(kind, body)
            if self._unended:
                line = b"\n" + line
            os.ftruncate(descriptor, self._end)  # an unfinished line of a crashed writer
            _write_all(descriptor, line, self._end)
            waits = self._durable if durable is None else durable
            if waits:
                os.fsync(descriptor)
            self.durable_head = record.head if waits else self.durable_head
        if is_new:
            sync_folder(self.path.parent)
        self._accept([record], len(line))
        self.torn, self._unended = 0, False
        return record

    def sync(self) -> None:
        """Wait until everything is on disk."""
        with self._open(os.O_RDONLY) as descriptor:
            os.fsync(descriptor)
        self.durable_head = self.head

    def _seal(self, kind: str, body: Mapping[str, Any]) -> tuple[Record, bytes]:
        number = len(self.records)
        text = json.dumps(
            {"n": number, "kind": kind, "body": body}, allow_nan=False, separators=(",", ":")
        )
        content = text.encode()[:-1]
        mac = self._key.mac(bytes.fromhex(self._mac) + content).hex()
        line = content + b',"mac":"' + mac.encode() + b'"}\n'
        return Record(number, kind, json.loads(text)["body"], mac), line

    def _read(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size < self._end:
            raise LedgerError(f"{self.path} was shortened while in use: restore it from a backup")
        content = _read_all(descriptor, self._end, size)
        if self._unended and content:
            if content[:1] != b"\n":
                raise LedgerError(f"{self.path}: record {len(self.records)} is damaged")
            content, self._end, self._unended = content[1:], self._end + 1, False
        *whole, tail = content.split(b"\n")
        ended = len(content) - len(tail)
        if _SEAL.search(tail):  # all there but its newline: it counts
            whole, ended, self._unended = [*whole, tail], len(content), True
        self._accept(self._checked(whole), ended)
        self.torn = len(content) - ended

    def _checked(self, lines: list[bytes]) -> list[Record]:
        """The records of whole lines, if they continue the chain."""
        macs, contents = [], []
        previous = bytes.fromhex(self._mac)
        for number, line in enumerate(lines, start=len(self.records)):
            seal = _SEAL.search(line, max(0, len(line) - _SEAL_BYTES))
            if seal is None or seal.end() != len(line):
                raise LedgerError(f"{self.path}: record {number} is damaged")
            content = line[: seal.start()]
            previous = self._key.mac(previous + content)
            if not hmac.compare_digest(previous.hex().encode(), seal[1]):
                raise LedgerError(
                    f"{self.path}: record {number} was edited, reordered or made with another key"
                )
            macs.append(previous.hex())
            contents.append(content)
        # One call for all of them: parsing line by line would take longer than checking the chain.
        held = json.loads(b"[" + b",".join(c + b"}" for c in contents) + b"]")
        return [
            Record(row["n"], row["kind"], row["body"], mac)
            for row, mac in zip(held, macs, strict=True)
        ]

    def _accept(self, records: list[Record], length: int) -> None:
        if records:
            self.records += records
            self._mac = records[-1].mac
        self._end += length

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        try:
            descriptor = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise LedgerError(f"{self.path} is a link, not a ledger: restore it") from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)  # also gives up the lock


# One descriptor per access, read in place: closing a second one would give up the lock.
def _read_all(descriptor: int, start: int, end: int) -> bytes:
    parts = []
    while start < end and (part := os.pread(descriptor, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
