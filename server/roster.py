"""Who is who: nodes introduce themselves before they are given work.

Flower knows nodes by ids that change with each start. A node's own name orders the aggregation, so
that the same nodes give the same bytes, and names who is missing.
"""

from collections.abc import Callable, Mapping, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedlora.adapters import WireError
from fedlora.protos import Hello, Introduction
from fedlora.strategies import collect
from fedlora.strategies.messages import hello_content, open_introduction

Refused = Callable[[str, str], None]


class IntroducedNodes:
    """A roster of the nodes that answered a hello, and fit the run."""

    def __init__(
        self, hello: Hello, expected: Sequence[str], seconds: float, refused: Refused, poll: float
    ) -> None:
        """Ask each new node once, waiting `seconds` at most.

        Args:
            hello: what every node is asked.
            expected: names that should come, for messages; may be empty.
            seconds: to wait for an introduction.
            refused: told of a node that is turned away, and why.
            poll: seconds between two looks for replies.
        """
        self._hello, self._expected = hello, tuple(expected)
        self._seconds, self._poll, self._refused = seconds, poll, refused
        self._known: dict[int, Introduction] = {}
        self._turned_away: dict[int, str] = {}

    def names(self, grid: Grid) -> Mapping[int, str]:
        """Nodes that are connected and introduced; asks those that are new."""
        connected = list(grid.get_node_ids())
        new = [one for one in connected if one not in self._known | self._turned_away.keys()]
        if new:
            self._ask(grid, new)
        return {one: self._known[one].node for one in connected if one in self._known}

    def is_called(self, node_id: int, name: str) -> bool:
        """A node answers under the name that it introduced itself with."""
        return node_id in self._known and self._known[node_id].node == name

    def absent(self) -> str:
        """Expected names that didn't come, and why others were turned away."""
        present = {one.node for one in self._known.values()}
        missing = [name for name in self._expected if name not in present]
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"turned away: {reason}" for reason in self._turned_away.values()]
        return "; ".join(parts)

    def introductions(self) -> Sequence[Introduction]:
        """What the nodes said of themselves, by name."""
        return sorted(self._known.values(), key=lambda one: one.node)

    def _ask(self, grid: Grid, new: Sequence[int]) -> None:
        content = hello_content(self._hello)
        messages = [
            Message(content, one, MessageType.QUERY, ttl=self._seconds, group_id="hello")
            for one in new
        ]
        silent = dict.fromkeys(new)
        for node_id, reply in collect(grid, messages, self._seconds, self._poll):
            del silent[node_id]
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason or f"error code {reply.error.code}")
                self._welcome(node_id, open_introduction(reply))
            except WireError as error:
                self._turn_away(node_id, str(error))
        for node_id in silent:
            self._turn_away(node_id, f"no introduction within {self._seconds:g} s")

    def _welcome(self, node_id: int, introduction: Introduction) -> None:
        """Take a node in; one that comes back under its name replaces its former self."""
        if not introduction.node or not 1 <= introduction.examples < 1 << 40:
            raise WireError(f"an introduction of {introduction.examples} examples without sense")
        for other, known in list(self._known.items()):
            if known.node == introduction.node:
                del self._known[other]
        self._known[node_id] = introduction

    def _turn_away(self, node_id: int, reason: str) -> None:
        self._turned_away[node_id] = reason
        self._refused(str(node_id), reason)
