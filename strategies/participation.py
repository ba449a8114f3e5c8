"""Who takes part in a round: bounded waiting, seeded sampling, bounded collection of replies.

Flower's own sampler waits for nodes without end and draws from the process-wide generator.
"""

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from fedlora.adapters import QuorumError
from fedlora.protos.envelope import VerifyingKey


class Roster(Protocol):
    """Knows the nodes by name, and what they said of themselves."""

    def names(self, grid: Grid) -> Mapping[int, str]:
        """The nodes that can be asked now: name by node id."""
        ...

    def key(self, node_id: int) -> VerifyingKey | None:
        """The key that this node signs with; None if nothing is signed."""
        ...

    def is_called(self, node_id: int, name: str) -> bool:
        """Whether this node may answer under this name."""
        ...

    def examples(self, node_id: int) -> int | None:
        """How many examples it said it has; None if it wasn't asked."""
        ...

    def held(self, node_id: int) -> Collection[str]:
        """Digests of the residuals and snapshots that were on its disk when it came."""
        ...

    def takes_residuals(self, node_id: int) -> bool:
        """Whether it folds them into its frozen weights, rather than needing a side path."""
        ...

    def lost(self, node_id: int) -> None:
        """The node let a deadline pass, or failed: not to be asked before it is heard of again."""
        ...

    def absent(self) -> str:
        """Who was expected and is not here, and who was turned away; for an error message."""
        ...


class Subnets(Protocol):
    """Decides at which widths the nodes of a round train."""

    def draw(self, round: int, nodes: Mapping[int, str]) -> Mapping[int, Mapping[str, int]]:
        """Bits by module, by node id; the same for the same round and names."""
        ...


class AnyNode:
    """The roster of an app that doesn't name its nodes: a node's name is its id."""

    def names(self, grid: Grid) -> Mapping[int, str]:
        """All nodes that are connected."""
        return {node_id: str(node_id) for node_id in grid.get_node_ids()}

    def key(self, node_id: int) -> VerifyingKey | None:
        """Nothing is signed."""
        return None

    def is_called(self, node_id: int, name: str) -> bool:
        """Any name will do."""
        return True

    def examples(self, node_id: int) -> int | None:
        """Nobody was asked."""
        return None

    def held(self, node_id: int) -> Collection[str]:
        """Nothing, for all that is known."""
        return ()

    def takes_residuals(self, node_id: int) -> bool:
        """Every node does, for all that is known."""
        return True

    def lost(self, node_id: int) -> None:
        """Flower drops nodes that are gone by itself."""

    def absent(self) -> str:
        """Nobody is expected by name."""
        return ""


@dataclass(frozen=True)
class Participation:
    """How many nodes a round needs, and how long it waits for them.

    Attributes:
        min_nodes: nodes to wait for before a round, and updates that it needs.
        sample: share of the nodes that train in a round.
        wait: seconds to wait for `min_nodes` to be there.
        retries: times that a round with too few updates is tried again.
        max_norm_ratio: how many times the median of its peers an update may move the model.
        seed: of the sampling.
        poll: seconds between two looks for nodes or replies.
    """

    min_nodes: int = 2
    sample: float = 1.0
    wait: float = 300.0
    retries: int = 2
    max_norm_ratio: float = 10.0
    seed: int = 0
    poll: float = 0.5

    def gather(self, grid: Grid, roster: Roster) -> Mapping[int, str]:
        """Wait until enough nodes are there.

        Raises:
            QuorumError: after `wait` seconds, naming who is there and who is missing.
        """
        limit = time.monotonic() + self.wait
        while len(nodes := roster.names(grid)) < self.min_nodes:
            if time.monotonic() >= limit:
                present = ", ".join(sorted(nodes.values())) or "none"
                raise QuorumError(
                    f"{len(nodes)} of at least {self.min_nodes} nodes came within {self.wait:g} s "
                    f"({present}). {roster.absent()}".strip()
                )
            time.sleep(self.poll)
        return nodes

    def draw(self, nodes: Mapping[int, str], round: int, attempt: int) -> dict[int, str]:
        """The nodes that train: the same for the same names, seed, round and attempt."""
        order = sorted(nodes.items(), key=lambda item: item[1])
        count = max(min(self.min_nodes, len(order)), math.ceil(self.sample * len(order)))
        chosen = random.Random(f"{self.seed}/{round}/{attempt}").sample(order, count)
        return dict(sorted(chosen, key=lambda item: item[1]))


def collect(
    grid: Grid, messages: Iterable[Message], seconds: float, poll: float
) -> Iterator[tuple[int, Message]]:
    """Send messages and hand out each reply as it comes, until all are in or time is up.

    Yields:
        The id of the node that was asked, and its reply. (An error reply that Flower makes for a
        lost node doesn't name it, so the id comes from what was sent.)
    """
    limit = time.monotonic() + seconds
    sent = list(messages)
    nodes = [message.metadata.dst_node_id for message in sent]
    waiting = dict(zip(grid.push_messages(sent), nodes, strict=True))
    del sent
    while waiting:
        replies = list(grid.pull_messages(list(waiting)))
        for reply in replies:
            yield waiting.pop(reply.metadata.reply_to_message_id), reply
        if time.monotonic() >= limit:
            return
        if waiting and not replies:
            time.sleep(poll)
