"""Secure aggregation as messages reach a client: each stage's question, and the masked answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from dp_fedmed.config import Config
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import RoundOrder, client_name
from dp_fedmed.federation.arrays import State
from dp_fedmed.federation.masked_rounds import flattened
from dp_fedmed.federation.secure_aggregation import Delivery, Roster, Terms, UnmaskRequest
from dp_fedmed.federation.secure_aggregation.attempt import MASKED, MASKING, TERMS
from dp_fedmed.federation.secure_aggregation.plain import Plain
from dp_fedmed.site.keys import client_folder, client_ledger_key, refuse_homeless
from dp_fedmed.site.masking import UNMASKED, Masking


class MaskedAnswers:
    """What the clients of one process remember of secure aggregation."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._masks: dict[str, Masking] = {}

    def of(self, node: Mapping[str, Any]) -> Masking:
        """One client's memory."""
        name = client_name(node)
        if name not in self._masks:
            refuse_homeless(node)
            self._masks[name] = Masking(
                client_folder(self.config, node),
                name,
                client_ledger_key(self.config, node, name + UNMASKED),
                durable="state-dir" in node,
            )
        return self._masks[name]

    def advertise(self, message: Message, context: Context) -> RecordDict:
        """Tell a client's public keys."""
        terms = terms_of(message)
        if not self.config.masks or terms.colluding < self.config.federation.max_colluding:
            raise ConfigError(
                "the server asks for another secure aggregation than this client's settings say: "
                "start both with the same privacy.noise and federation.max_colluding"
            )
        return _said(self.of(context.node_config).advertise(terms))

    def share(self, message: Message, context: Context) -> RecordDict:
        """Share what unmasks a client's answer with its neighbours."""
        roster = Roster.from_record(_stage(message))
        return _said(self.of(context.node_config).share(terms_of(message), roster))

    def unmask(self, message: Message, context: Context) -> RecordDict:
        """Help to unmask the sum of the answers."""
        request = UnmaskRequest.from_record(_stage(message))
        return _said(self.of(context.node_config).reveal(terms_of(message), request))

    def clients(self, message: Message, node: Mapping[str, Any]) -> int:
        """How many are in the attempt that a message belongs to."""
        return self.of(node).clients(terms_of(message))

    def masked(
        self,
        answer: State,
        about: str,
        order: RoundOrder,
        message: Message,
        node: Mapping[str, Any],
    ) -> State:
        """An answer as the server may see it.

        Args:
            answer: integers.
            about: what it is made from, in one word.
            order: the server's.
            message: with the attempt's terms, and the shares of the client's neighbours.
            node: the client's.
        """
        terms = terms_of(message)
        if (terms.run, terms.server_round) != (f"{order.run}:{order.phase}", order.server_round):
            raise ConfigError("the server's round order and its secure aggregation do not agree")
        delivery = Delivery.from_record(_stage(message))
        return {MASKED: self.of(node).mask(terms, delivery, about, flattened(answer)).values}


def terms_of(message: Message) -> Terms:
    """The terms of the attempt that a message belongs to.

    Raises:
        MaskingRefused: if it has none that can be read.
    """
    return Terms.from_record(message.content.config_records.get(TERMS, ConfigRecord()))


def _stage(message: Message) -> ConfigRecord:
    return message.content.config_records.get(MASKING, ConfigRecord())


def _said(value: Plain) -> RecordDict:
    return RecordDict({MASKING: ConfigRecord(dict(value.to_record()))})
