"""Who is who: nodes introduce themselves before they are given work.

Flower knows nodes by ids that change with each start. A node's own name orders the aggregation, so
that the same nodes give the same bytes, and names who is missing. A node that failed, or let a
deadline pass, is asked again and gets no work before it answers: it may be busy with what nobody
waits for any more.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedlora.adapters import IdentityError, WireError
from fedlora.protos import Hello, Introduction
from fedlora.protos.envelope import SigningKey, VerifyingKey
from fedlora.strategies.messages import hello_content, open_introduction

FLOAT32 = 32  # bits

Refused = Callable[[str, str], None]

HELD = 100_000  # digests that a node may say it holds
PATIENCE = 60.0  # seconds that a round's start waits for the introduction of a node that just came


class IntroducedNodes:
    """A roster of the nodes that answered a hello, and fit the run."""

    def __init__(
        self,
        hello: Hello,
        expected: Sequence[str],
        seconds: float,
        refused: Refused,
        poll: float,
        key: SigningKey | None = None,
        node_keys: Path | None = None,
    ) -> None:
        """Ask each new node; see `names`.

        Args:
            hello: what every node is asked; its nonce is set here.
            expected: names that should come, for messages; may be empty.
            seconds: after which a hello is void.
            refused: told of a node that is turned away, and why.
            poll: seconds between two looks for replies.
            key: that the hello is signed with.
            node_keys: folder with NAME.pub of each registered node; None if nothing is signed.
        """
        self._hello = Hello(run=hello.run, base=hello.base, task=hello.task)
        self._hello.nonce = secrets.token_bytes(16)
        self._expected, self._seconds, self._poll = tuple(expected), seconds, poll
        self._refused, self._key, self._node_keys = refused, key, node_keys
        self._known: dict[int, Introduction] = {}
        self._turned_away: dict[int, str] = {}
        self._asked: dict[str, int] = {}  # node by message
        self._patience: dict[int, float] = {}  # until when a new node is waited for

    def names(self, grid: Grid) -> Mapping[int, str]:
        """Nodes that are connected and introduced; asks those that are new.

        Waits for a node that was never heard of, for PATIENCE at most.
        """
        while True:
            connected = set(grid.get_node_ids())
            settled = self._known.keys() | self._turned_away.keys() | set(self._asked.values())
            self._ask(grid, sorted(connected - settled))
            self._hear(grid)
            now = time.monotonic()
            waited = [one for one in self._asked.values() if now < self._patience[one]]
            if not connected.intersection(waited):
                return {one: self._known[one].node for one in sorted(connected) if self._fits(one)}
            time.sleep(self._poll)

    def key(self, node_id: int) -> VerifyingKey | None:
        """The registered key of an introduced node; None if nothing is signed.

        Raises:
            IdentityError: if it is registered no longer, or has not introduced itself.
        """
        if node_id not in self._known:
            raise IdentityError("the node has not introduced itself")
        return self._key_of(self._known[node_id].node)

    def is_called(self, node_id: int, name: str) -> bool:
        """A node answers under the name that it introduced itself with."""
        return node_id in self._known and self._known[node_id].node == name

    def examples(self, node_id: int) -> int | None:
        """As the node said when it came."""
        return self._known[node_id].examples if node_id in self._known else None

    def held(self, node_id: int) -> Collection[str]:
        """As the node said when it came."""
        return {one.hex() for one in self._known[node_id].held} if node_id in self._known else ()

    def takes_residuals(self, node_id: int) -> bool:
        """Whether its frozen weights are float32, as the node said when it came."""
        return node_id in self._known and width_of(self._known[node_id]) == FLOAT32

    def widths(self, node_ids: Iterable[int]) -> dict[int, tuple[int, float]]:
        """The widest weights that nodes hold, and the widest on average, in bits."""
        known = {one: self._known[one] for one in node_ids if one in self._known}
        return {one: (width_of(said), said.mean_width or math.inf) for one, said in known.items()}

    def lost(self, node_id: int) -> None:
        """Forget a node until it introduces itself again."""
        self._known.pop(node_id, None)

    def absent(self) -> str:
        """Expected names that aren't here, who is busy, and why others were turned away."""
        present = {one.node for one in self._known.values()}
        missing = [name for name in self._expected if name not in present]
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"turned away: {reason}" for reason in self._turned_away.values()]
        return "; ".join(parts)

    def introductions(self) -> Sequence[Introduction]:
        """What the nodes said of themselves, by name."""
        return sorted(self._known.values(), key=lambda one: one.node)

    def _fits(self, node_id: int) -> bool:
        """Introduced, and still registered."""
        try:
            if node_id in self._known:
                self.key(node_id)
        except IdentityError as error:
            self._turn_away(node_id, str(error))
        return node_id in self._known

    def _ask(self, grid: Grid, new: Sequence[int]) -> None:
        content = hello_content(self._hello, self._key)
        messages = [
            Message(content, one, MessageType.QUERY, ttl=self._seconds, group_id="hello")
            for one in new
        ]
        self._asked |= dict(zip(grid.push_messages(messages), new, strict=True)) if new else {}
        for one in new:
            self._patience.setdefault(one, time.monotonic() + min(PATIENCE, self._seconds))

    def _hear(self, grid: Grid) -> None:
        for reply in grid.pull_messages(list(self._asked)) if self._asked else ():
            node_id = self._asked.pop(reply.metadata.reply_to_message_id)
            self._patience[node_id] = 0.0
            try:
                if not reply.has_error():
                    self._welcome(node_id, open_introduction(reply, self._key_of))
                elif reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                    raise WireError(reply.error.reason or "no reason given")
            except (WireError, IdentityError) as error:
                self._turn_away(node_id, str(error))

    def _welcome(self, node_id: int, introduction: Introduction) -> None:
        """Take a node in; one that comes back under its name replaces its former self."""
        if not introduction.node or not 1 <= introduction.examples < 1 << 40:
            raise WireError(f"an introduction of {introduction.examples} examples without sense")
        if not introduction.mean_width >= 0:
            raise WireError(f"an introduction of {introduction.mean_width} bits a weight")
        if introduction.nonce != self._hello.nonce or len(introduction.held) > HELD:
            raise WireError("an introduction that does not answer this run's hello")
        for other, known in list(self._known.items()):
            if known.node == introduction.node:
                del self._known[other]
        self._known[node_id] = introduction

    def _turn_away(self, node_id: int, reason: str) -> None:
        self._known.pop(node_id, None)
        self._turned_away[node_id] = reason
        self._refused(str(node_id), reason)

    def _key_of(self, name: str) -> VerifyingKey | None:
        """The registered key of a node; read each time, so that a removed one is out at once."""
        if self._node_keys is None:
            return None
        path = self._node_keys / f"{name}.pub"
        if Path(name).name != name or not path.is_file():
            raise IdentityError(f"node {name!r} is not registered: there is no {name}.pub")
        return VerifyingKey.load(path)


def width_of(said: Introduction) -> int:
    """Bits of a node's widest frozen weights; one that doesn't say holds float32."""
    return said.width or FLOAT32
