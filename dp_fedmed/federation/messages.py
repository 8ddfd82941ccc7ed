"""What goes over the wire besides arrays and metrics, as values and as Flower's records.

A peer may be another version or another program, so every value is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import ConfigRecord

from dp_fedmed.errors import ConfigError

VERSION = 3  # 2: clients may answer sums in integers; 3: and noise or mask them
QUERY, READY = "query.name", "query.ready"
ENGINE_ERROR = 0  # Flower's code for a failure of the engine itself, not of the ClientApp
CLIENT_FAILED = 2  # Flower's code for a ClientApp that raised

T = TypeVar("T", int, float, str)
_ORDERED = frozenset(
    {
        *("version", "input_shape", "num_classes", "run", "streams", "phase", "style", "round"),
        *("noised_by", "noise_std", "client_noise"),
        *("ledger", "noise_multiplier", "sample_rate", "steps", "grad_mode"),
    }
)


@dataclass(frozen=True, kw_only=True)
class RecordOrder:
    """What a client is to do for its records in a round: σ, q, the steps, and how."""

    noise_multiplier: float
    sample_rate: float
    steps: int
    grad_mode: str

    def to_dict(self) -> dict[str, Any]:
        """As it is sent."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class RoundOrder:
    """What a server sends with a model.

    Attributes:
        input_shape, num_classes: of the records that the network is for.
        run: the run's id.
        streams: what separates this run's secret streams from another's.
        phase: the stretch of the run with the same settings.
        style: the privacy style that the server counts on.
        noised_by: who noises what the client answers: `client`, `shares`, `server` or `nobody`.
        noise_std: of the noise in the sum, where clients draw it for whole answers.
        client_noise: σ for whole clients, likewise.
        server_round: the round; None where a client is only asked whether it could take part.
        ledger: how far the server's ledger has come.
        records: what to do for the client's records, where they are protected.
        learning: what the learner's other half must know.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    run: str
    streams: str
    phase: int
    style: str
    noised_by: str = "nobody"
    noise_std: float | None = None
    client_noise: float | None = None
    server_round: int | None = None
    ledger: int | None = None
    records: RecordOrder | None = None
    learning: Mapping[str, Any] = field(default_factory=dict)

    def to_record(self) -> ConfigRecord:
        """As it is sent."""
        sent: dict[str, Any] = {
            "version": VERSION,
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
            "run": self.run,
            "streams": self.streams,
            "phase": self.phase,
            "style": self.style,
            "noised_by": self.noised_by,
            **self.learning,
        }
        for key in ("noise_std", "client_noise"):
            if getattr(self, key) is not None:
                sent[key] = getattr(self, key)
        if self.server_round is not None:
            sent["round"] = self.server_round
        if self.ledger is not None:
            sent["ledger"] = self.ledger
        return ConfigRecord(sent | ({} if self.records is None else self.records.to_dict()))

    @classmethod
    def from_record(cls, record: ConfigRecord) -> RoundOrder:
        """What a server sent.

        Raises:
            ConfigError: for another version, or a value that is missing or of a wrong kind.
        """
        refuse_other_version(record)
        shape = record.get("input_shape")
        if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
            raise _unlike("input_shape", shape)
        records = None
        if "noise_multiplier" in record:
            records = RecordOrder(
                noise_multiplier=_read(record, "noise_multiplier", float),
                sample_rate=_read(record, "sample_rate", float),
                steps=_read(record, "steps", int),
                grad_mode=_read(record, "grad_mode", str),
            )
        return cls(
            input_shape=tuple(int(n) for n in shape),
            num_classes=_read(record, "num_classes", int),
            run=_read(record, "run", str),
            streams=_read(record, "streams", str),
            phase=_read(record, "phase", int),
            style=_read(record, "style", str),
            noised_by=_read(record, "noised_by", str),
            noise_std=_read(record, "noise_std", float) if "noise_std" in record else None,
            client_noise=_read(record, "client_noise", float) if "client_noise" in record else None,
            server_round=_read(record, "round", int) if "round" in record else None,
            ledger=_read(record, "ledger", int) if "ledger" in record else None,
            records=records,
            learning={key: value for key, value in record.items() if key not in _ORDERED},
        )


@dataclass(frozen=True, kw_only=True)
class RecordAnswer:
    """What a client says that it did for its records, and how often it paid for the round."""

    noise_multiplier: float
    sample_rate: float
    steps: int
    charges: int = 1

    def to_record(self) -> ConfigRecord:
        """As it is sent."""
        return ConfigRecord(dict(vars(self)))


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """What a client says before round 1: its name, or why it cannot take part.

    Attributes:
        name: stable over runs.
        num_partitions: of the simulation that the client is a part of.
        num_records: where the server asks for sizes.
        own_data: whether the client is a site of its own, not a part of a simulation.
        refusal: why it cannot take part.
    """

    name: str | None = None
    num_partitions: int | None = None
    num_records: int | None = None
    own_data: bool = False
    refusal: str | None = None

    def to_record(self) -> ConfigRecord:
        """As it is sent; what there is nothing to say of is left out."""
        said = {
            "name": self.name,
            "num-partitions": self.num_partitions,
            "num-records": self.num_records,
            "own-data": self.own_data or None,
            "refusal": self.refusal,
        }
        told = {key: value for key, value in said.items() if value is not None}
        return ConfigRecord({"version": VERSION, **told})


def refuse_other_version(record: Mapping[str, Any]) -> None:
    """Refuse messages of a later version of the protocol.

    Raises:
        ConfigError: naming both versions.
    """
    version = record.get("version", VERSION)
    if version != VERSION:
        raise ConfigError(
            f"messages of version {version!r} were sent, and this dp_fedmed knows version "
            f"{VERSION}: install the same dp_fedmed at the server and at every site"
        )


def _read(record: ConfigRecord, key: str, kind: type[T]) -> T:
    value = record.get(key)
    fits = isinstance(value, int) if kind is float else False
    if isinstance(value, bool) or not (isinstance(value, kind) or fits):
        raise _unlike(key, value)
    return kind(value)  # type: ignore[arg-type]


def _unlike(key: str, value: object) -> ConfigError:
    return ConfigError(
        f"the server's round order has {key}={value!r}, which is not what this dp_fedmed expects: "
        "install the same dp_fedmed at the server and at every site"
    )
