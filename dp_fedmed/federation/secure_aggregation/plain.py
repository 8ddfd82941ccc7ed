"""Values of secure aggregation as plain ones that Flower's ConfigRecord, or a file, can hold.

What arrives may come from another program, so every value is checked when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, Self, get_origin, get_type_hints

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.privacy.streams.keys import length_prefixed

Record = dict[str, int | str | bytes | list[str] | list[bytes]]
NAMES: Final = ".names"  # a mapping is sent as two lists, of which this one has the keys
_KINDS: Final[dict[Any, dict[str, Any]]] = {}  # by class, what its fields hold


class Plain:
    """A frozen dataclass of integers, strings, bytes, sets of names, and bytes by name."""

    def to_record(self) -> Record:
        """As it is sent or stored; names are in order, so equal values give equal records."""
        record: Record = {}
        for key, kind in _kinds(type(self)).items():
            value = getattr(self, key)
            if kind is Mapping:
                record[key + NAMES] = sorted(value)
                record[key] = [value[name] for name in sorted(value)]
            else:
                record[key] = sorted(value) if kind is tuple else value
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """What was sent or stored.

        Raises:
            MaskingRefused: for a value that is missing, of a wrong kind, or has a name twice.
        """
        return cls(**{key: _read(record, key, kind) for key, kind in _kinds(cls).items()})

    def to_json(self) -> dict[str, Any]:
        """As a file holds it: bytes as hexadecimal digits."""
        return {key: _plainer(value) for key, value in self.to_record().items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` gave.

        Raises:
            MaskingRefused: for a value that is missing or of a wrong kind.
        """
        kinds = _kinds(cls)
        try:
            read = {key: _unplain(value, kinds.get(key, tuple)) for key, value in content.items()}
        except (TypeError, ValueError):
            raise MaskingRefused("what was kept of secure aggregation cannot be read") from None
        return cls.from_record(read)

    def digest(self) -> bytes:
        """32 bytes that two values share only if they are equal."""
        parts: list[bytes] = [type(self).__name__.encode()]
        for key, value in self.to_record().items():
            items = value if isinstance(value, list) else [value]
            parts += [key.encode(), length_prefixed(_encoded(item) for item in items)]
        return hashlib.sha256(length_prefixed(parts)).digest()


def _kinds(cls: Any) -> dict[str, Any]:
    if cls not in _KINDS:
        _KINDS[cls] = _kinds_of(cls)
    return _KINDS[cls]


def _kinds_of(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: get_origin(hints[field.name]) or hints[field.name] for field in fields(cls)}


def _plainer(value: Any) -> Any:
    if isinstance(value, list):
        return [_plainer(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _unplain(value: Any, kind: Any) -> Any:
    if kind is Mapping:
        return [bytes.fromhex(item) for item in value]
    return bytes.fromhex(value) if kind is bytes else value


def _encoded(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _read(record: Mapping[str, Any], key: str, kind: Any) -> Any:
    value = record.get(key)
    if kind is tuple:
        return tuple(_names(value, key))
    if kind is not Mapping:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _unlike(key)
        return value
    names = _names(record.get(key + NAMES), key)
    if not isinstance(value, list) or len(value) != len(names):
        raise _unlike(key)
    if not all(isinstance(item, bytes) for item in value):
        raise _unlike(key)
    return dict(zip(names, value, strict=True))


def _names(value: object, key: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _unlike(key)
    if len(set(value)) != len(value):
        raise MaskingRefused(f"a message of secure aggregation has a name twice in {key!r}")
    return value


def _unlike(key: str) -> MaskingRefused:
    return MaskingRefused(
        f"a message of secure aggregation has no {key!r} that this dp_fedmed can read: "
        "install the same dp_fedmed at the server and at every site"
    )
