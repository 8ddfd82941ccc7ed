"""Secret keys and their files: created once, readable by their owner only, never printed or copied.

Two kinds, kept apart so that who may check a ledger cannot draw noise: `NoiseKey` (in noise.py)
and `MacKey`.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

KEY_BYTES: Final = 32
#: Where a run keeps its keys, below its directory: noise by phase, and the ledger's.
SECRET_FOLDER: Final = Path("private") / "secret"
NOISE_KEYS: Final = "noise_*.key"
LEDGER_KEY_FILE: Final = "ledger.key"
TEMPORARY: Final = ".tmp-"  # how names of unfinished files begin


def array_digest(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Plain SHA-256 over dtypes, shapes and values, in order."""
    digest = hashlib.sha256(b"dp_fedmed arrays v1")
    for array in arrays:
        data = np.ascontiguousarray(array)
        if data.dtype.hasobject:
            raise TypeError("arrays of Python objects have no stable bytes to digest")
        header = f"{data.dtype.str}{np.shape(array)}".encode()
        digest.update(length_prefixed([header, data.nbytes.to_bytes(8, "big")]))
        digest.update(data.reshape(-1).view(np.uint8).data)
    return digest.digest()


def length_prefixed(fields: Iterable[bytes | None]) -> bytes:
    """Concatenation that can be taken apart in one way only; None differs from empty."""
    parts = []
    for field in fields:
        parts.append(b"\0" if field is None else b"\1" + len(field).to_bytes(8, "big") + field)
    return b"".join(parts)


class SecretKey:
    """256 bits that cannot be printed, copied or pickled."""

    __slots__ = ("_secret",)
    _header: ClassVar[bytes]
    _what: ClassVar[str]

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            raise ValueError(f"a {self._what} is {KEY_BYTES} bytes; use generate()")
        self._secret = bytearray(secret)

    @classmethod
    def generate(cls) -> Self:
        """A fresh key from the operating system."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Self:
        """A fresh key in a new file of mode 0600, durable before this returns.

        Raises:
            FileExistsError: If there is a file already; a key is never replaced.
        """
        key = cls.generate()
        target = Path(path)
        # Written under another name first: a crash must not leave half a key under the real one.
        temporary = target.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(cls._header + bytes(key._secret).hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if target.exists():
                raise FileExistsError(errno.EEXIST, "there is a key already", str(target)) from None
            os.rename(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)
        return key

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a key file; refuse one that others could have read.

        Raises:
            FileNotFoundError: If it is missing.
            PermissionError: If its mode allows anything to group or others.
            ValueError: If it is not a key file.
        """
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} is not a regular file, so not a {cls._what}")
            if status.st_mode & 0o077:
                raise PermissionError(
                    f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, so others may have read"
                    f" the {cls._what}; start a new phase with a new key (mode 0600)"
                )
            content = file.read(len(cls._header) + 2 * KEY_BYTES + 2)
        body = content.removeprefix(cls._header).removesuffix(b"\n")
        try:
            if not content.startswith(cls._header) or len(body) != 2 * KEY_BYTES:
                raise ValueError
            return cls(bytes.fromhex(body.decode("ascii")))
        except ValueError:
            raise ValueError(f"{path} is not a dp_fedmed {cls._what}, or it is damaged") from None

    def fingerprint(self) -> str:
        """Says whether two keys are the same, and nothing else about them."""
        return self._mac(b"dp_fedmed key fingerprint v1").hex()

    def destroy(self, path: str | os.PathLike[str] | None = None) -> None:
        """Forget the key, in memory and (overwritten, then removed) in its file."""
        self._secret[:] = b""
        if path is not None:
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                file.write(b"\0" * os.fstat(file.fileno()).st_size)
                os.fsync(file.fileno())
            os.unlink(path)
            sync_folder(Path(path).parent)

    def _derived(self, *names: str) -> bytes:
        return self._mac(
            length_prefixed([b"dp_fedmed derive v1", *(name.encode() for name in names)])
        )

    def _mac(self, message: bytes) -> bytes:
        if not self._secret:
            raise RuntimeError(
                f"this {self._what} was destroyed; a finished run can only be extended as a new"
                " phase"
            )
        return hmac.digest(self._secret, message, hashlib.sha256)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<hidden>)"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"a {self._what} cannot be pickled or copied; pass the object or its file path"
        )

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = _refuse  # type: ignore[assignment]


class MacKey(SecretKey):
    """The key that chains a ledger's records; it outlives the noise key, and draws nothing.

    Example:
        >>> key = MacKey.generate()
        >>> key
        MacKey(<hidden>)
        >>> len(key.mac(b"a record"))
        32
    """

    __slots__ = ()
    _header = b"dp_fedmed ledger key v1\n"
    _what = "ledger key"

    def mac(self, message: bytes) -> bytes:
        """HMAC-SHA256 of a message."""
        return self._mac(message)

    def digest(self, arrays: Iterable[NDArray[Any]]) -> bytes:
        """Keyed digest of arrays, to notice that private data have changed."""
        return self._mac(b"dp_fedmed data digest v1" + array_digest(arrays))

    def derive(self, *names: str) -> MacKey:
        """A key for another ledger of the same owner, e.g. a simulated client's."""
        return MacKey(self._derived(*names))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def key_file(run_dir: str | Path, phase: int) -> Path:
    """A run's noise key of one phase; each phase has its own."""
    return Path(run_dir) / SECRET_FOLDER / f"noise_{phase}.key"
