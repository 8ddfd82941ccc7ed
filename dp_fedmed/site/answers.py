"""What a client says to the server's questions, and how its failures are told.

No cohort has been drawn before round 1, so a site's own log and a simulation's user may see it all.
Later a failure is answered, not raised: Flower would print what is raised on the user's stream, and
so show that a client that fails was drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict

from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.failures import describe_failure, describe_refusal
from dp_fedmed.federation.messages import CLIENT_FAILED, Introduction
from dp_fedmed.federation.nodes import client_name
from dp_fedmed.federation.private_log import keep_failure
from dp_fedmed.site.rules import SiteRules
from dp_fedmed.site.runtime import ClientRuntime

logger = logging.getLogger(__name__)

RuntimeFor = Callable[[Context], ClientRuntime]


def introduce(message: Message, context: Context, runtime_for: RuntimeFor) -> Message:
    """Tell this client's name, and its number of records where the server asks for sizes."""
    node = context.node_config

    def say() -> Introduction:
        name = client_name(node)
        site = runtime_for(context)
        asked = site.config.asks_for_sizes
        return Introduction(
            name=name,
            num_partitions=int(node["num-partitions"]) if "num-partitions" in node else None,
            num_records=len(site.records(node)[0]) if asked else None,
            own_data="data-path" in node or "partition-id" not in node,
        )

    return _said(message, context, say)


def check_ready(message: Message, context: Context, runtime_for: RuntimeFor) -> Message:
    """Say whether this client could contribute to a round at all."""

    def say() -> Introduction:
        runtime_for(context).check(message, context)
        return Introduction()

    return _said(message, context, say)


def _said(message: Message, context: Context, say: Callable[[], Introduction]) -> Message:
    simulated = not SiteRules.is_deployed(context.node_config)
    try:
        said = say()
    except Exception as error:
        if not (simulated and isinstance(error, ConfigError)):  # who is told in full anyway
            logger.exception("this client cannot take part")
        said = Introduction(
            name=_name_of(context),
            refusal=describe_refusal(error, simulated=simulated),
            own_data=not simulated,
        )
    return Message(RecordDict({"client": said.to_record()}), reply_to=message)


def _name_of(context: Context) -> str | None:
    try:
        return client_name(context.node_config)
    except ConfigError:
        return None


def answer(
    verb: str,
    work: Callable[[ClientRuntime, Message, Context], RecordDict],
    message: Message,
    context: Context,
    runtime_for: RuntimeFor,
) -> Message:
    """Do a client's work; what went wrong stays in the client's own log."""
    node, site = context.node_config, None
    try:
        site = runtime_for(context)
        return Message(work(site, message, context), reply_to=message)
    except Exception as error:
        if SiteRules.is_deployed(node):
            logger.exception("this client could not %s", verb)
        elif site is not None:
            keep_failure(site.config.run_dir, client_name(node), verb)
        return Message(Error(CLIENT_FAILED, describe_failure(error)), reply_to=message)
