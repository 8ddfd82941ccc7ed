"""Stable client names, and who can take part.

Flower's node ids are random per run; streams, sums and tables use names.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dp_fedmed.errors import ConfigError, EngineLost, NodeError
from dp_fedmed.federation.exchange import InProcessGrid, exchange
from dp_fedmed.federation.failures import from_peer, one_line
from dp_fedmed.federation.messages import (
    ENGINE_ERROR,
    QUERY,
    READY,
    RoundOrder,
    refuse_other_version,
)

logger = logging.getLogger(__name__)

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
OWN_DATA, REFUSAL = "own-data", "refusal"  # in an introduction
POLL_SECONDS = 0.2
TRIES = 3  # to introduce oneself; a worker that dies costs one
MOST_RECORDS = 10**9  # that one client may say it has


def client_name(node_config: Mapping[str, Any]) -> str:
    """A node's stable name: `client-id` from its node-config, else its partition.

    >>> client_name({"partition-id": 3, "num-partitions": 10})
    'client-00003'
    >>> client_name({"client-id": "hospital-north"})
    'hospital-north'
    """
    given = node_config.get("client-id")
    if given is not None:
        if not NAME_PATTERN.fullmatch(str(given)):
            raise NodeError(
                f"node-config client-id={given!r} is not a name: use up to 64 letters, digits, "
                "'_', '.' and '-'"
            )
        return str(given)
    if "partition-id" in node_config:
        return f"client-{int(node_config['partition-id']):05d}"
    raise NodeError(
        "this node has no name: start its SuperNode with "
        "--node-config \"client-id='hospital-north'\""
    )


@dataclass(frozen=True)
class Node:
    """One client as the server knows it."""

    node_id: int
    records: int | None = None
    simulated: bool = True


def wait_for_nodes(
    grid: Grid, *, expected: int | None, timeout: float, ask_all: bool = False
) -> dict[str, Node]:
    """Wait until the federation is complete, and return each client by its name.

    Args:
        grid: where the nodes are.
        expected: how many clients there must be; None to believe a simulation's own count.
        timeout: seconds to wait for them.
        ask_all: ask also the nodes of a local grid, whose names are known without.

    Raises:
        NodeError: too few nodes in time, a node without an answer, or two with one name.
        ConfigError: a simulated client's own reason not to take part.
    """
    if isinstance(grid, InProcessGrid) and not ask_all:
        return {client_name({"partition-id": p}): Node(n) for n, p in grid.partition_ids().items()}
    deadline = time.monotonic() + timeout
    known: dict[int, ConfigRecord] = {}
    asked: Counter[int] = Counter()
    while True:
        new = sorted(set(grid.get_node_ids()) - set(known))
        asked.update(new)
        messages = [Message(RecordDict(), node_id, QUERY) for node_id in new]
        answers = _ask(grid, messages, deadline - time.monotonic(), asked) if new else {}
        for node_id, answer in answers.items():
            if not NAME_PATTERN.fullmatch(str(answer.get("name", ""))):
                raise NodeError(f"node {node_id} told a name that is not valid")
            known[node_id] = answer
            if expected is None and "num-partitions" in answer:
                expected = _count(node_id, answer, "num-partitions")
        if expected is not None and len(known) >= expected:
            return _by_name(known)
        if time.monotonic() > deadline:
            raise NodeError(
                f"{len(known)} of {expected or 'at least one'} clients connected within "
                f"federation.connect_timeout={timeout:g} s: start the missing SuperNodes, or "
                f"lower federation.num_clients"
            )
        time.sleep(POLL_SECONDS)


def check_ready(
    grid: Grid, nodes: Mapping[str, Node], order: Callable[[str], RoundOrder], *, timeout: float
) -> None:
    """Stop a run before round 1 if a client could never contribute.

    Every client is asked, whoever will be drawn. Those of a local grid are alike: they have this
    process' settings, records and folders, so the first speaks for all.

    Args:
        grid: where the nodes are.
        nodes: the clients by name.
        order: what each would be sent with a round, by its name.
        timeout: seconds to wait for answers.

    Raises:
        NodeError: naming the sites that cannot, with as much of the reason as they tell.
        ConfigError: a simulated client's own reason.
    """
    names = {node.node_id: name for name, node in nodes.items()}
    waiting = set(list(names)[:1] if isinstance(grid, InProcessGrid) else names)
    asked: Counter[int] = Counter()
    deadline = time.monotonic() + timeout
    while waiting:
        if time.monotonic() > deadline:
            silent = ", ".join(sorted(names[node_id] for node_id in waiting))
            raise NodeError(
                f"{silent} did not say within federation.connect_timeout={timeout:g} s whether it "
                "can take part: see its log, or give a larger federation.connect_timeout"
            )
        asked.update(waiting)
        messages = [
            Message(RecordDict({"config": order(names[node_id]).to_record()}), node_id, READY)
            for node_id in sorted(waiting)
        ]
        waiting -= _ask(grid, messages, deadline - time.monotonic(), asked, names).keys()


def _ask(
    grid: Grid,
    messages: list[Message],
    timeout: float,
    asked: Mapping[int, int],
    names: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, ConfigRecord]:
    """The answers of nodes; one whose worker was lost has none yet, and is asked again."""
    answers = {}
    for reply in _replies(grid, messages, max(1.0, timeout), names):
        node_id = reply.metadata.src_node_id
        if reply.has_error():
            if reply.error.code == ENGINE_ERROR and asked[node_id] < TRIES:
                continue
            what = "say whether it can take part" if names else "tell its name"
            who = names.get(node_id, f"node {node_id}")
            raise NodeError(f"{who} did not {what}: {from_peer(reply.error.reason)}")
        answer = reply.content.config_records.get("client", ConfigRecord())
        refuse_other_version(answer)
        answers[node_id] = answer
    _refuse(answers, names)
    return answers


def _replies(
    grid: Grid, messages: list[Message], timeout: float, names: Mapping[int, str]
) -> Iterable[Message]:
    try:
        yield from exchange(grid, messages, timeout=timeout, names=names)
    except EngineLost as error:
        raise NodeError(f"clients could not be asked: {error}") from error


def _refuse(answers: Mapping[int, ConfigRecord], names: Mapping[int, str]) -> None:
    """Stop for clients that cannot take part: it is no use to wait for the others."""
    sites = []
    for node_id, answer in answers.items():
        if REFUSAL not in answer:
            continue
        if not answer.get(OWN_DATA, False):
            raise ConfigError(one_line(answer[REFUSAL]))
        said = str(answer.get("name", ""))
        name = names.get(node_id, said if NAME_PATTERN.fullmatch(said) else f"node {node_id}")
        sites.append(f"{name} cannot take part: {from_peer(answer[REFUSAL])}")
    if sites:
        raise NodeError("; ".join(sorted(sites)))


def _by_name(known: Mapping[int, ConfigRecord]) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for node_id, answer in known.items():
        name = str(answer["name"])
        if name in nodes:
            raise NodeError(f"two nodes have the name {name!r}: give each its own client-id")
        count = _count(node_id, answer, "num-records") if "num-records" in answer else None
        nodes[name] = Node(node_id, count, simulated=not answer.get(OWN_DATA, False))
    return dict(sorted(nodes.items()))


def _count(node_id: int, answer: ConfigRecord, key: str) -> int:
    value = answer[key]
    if not isinstance(value, int) or not 0 <= value <= MOST_RECORDS:
        raise NodeError(f"node {node_id} says {key}={from_peer(value)}, which is not a count")
    return int(value)
