"""Who may answer, and in whose name: introductions, lost nodes, and unsigned words."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlora.adapters import IdentityError
from fedlora.protos import Hello, Introduction
from fedlora.protos.envelope import SigningKey
from fedlora.server.roster import IntroducedNodes
from fedlora.strategies import InProcessGrid
from fedlora.strategies.messages import open_hello, reply_introduction

HELLO = Hello(run="run", base="b" * 64, task="{}")
Said = Callable[[Hello, int], Introduction]


def introduction(hello: Hello, node: int) -> Introduction:
    return Introduction(node=f"n{node}", examples=5, nonce=hello.nonce, held=[b"\x01" * 32])


class Federation:
    """Nodes in this process, each with a key, and a folder of those that are registered."""

    def __init__(self, folder: Path, said: Said = introduction) -> None:
        self.keys = [SigningKey.generate() for _ in range(3)]
        self.folder = folder
        for node, key in enumerate(self.keys):
            (folder / f"n{node}.pub").write_bytes(key.verifying.line(f"n{node}"))
        self.refused: dict[str, str] = {}
        client = ClientApp()

        @client.query()
        def hello(message: Message, context: Context) -> Message:
            node = int(str(context.node_config["partition-id"]))
            made = said(open_hello(message), node)
            return reply_introduction(message, made, self.keys[node])

        self.grid = InProcessGrid(client, 3)
        self.roster = IntroducedNodes(
            HELLO, [], 5.0, self.refused.__setitem__, 0.0, None, node_keys=folder
        )

    def names(self) -> list[str]:
        return sorted(self.roster.names(self.grid).values())


def test_registered_nodes_are_known_by_name_and_say_what_they_hold(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    assert federation.names() == ["n0", "n1", "n2"]
    assert federation.roster.is_called(2, "n1")
    assert federation.roster.examples(2) == 5
    assert federation.roster.held(2) == {"01" * 32}
    assert federation.refused == {}


def test_S10_an_unregistered_and_a_removed_node_are_turned_away(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    (tmp_path / "n1.pub").unlink()
    assert federation.names() == ["n0", "n2"]
    assert "not registered" in federation.refused["2"]
    (tmp_path / "n0.pub").unlink()
    assert federation.names() == ["n2"]
    assert "not registered" in federation.refused["1"]


def test_S8_a_node_in_anothers_name_is_turned_away(tmp_path: Path) -> None:
    federation = Federation(tmp_path, lambda hello, node: introduction(hello, 0))
    assert federation.names() == ["n0"]
    assert "signature" in federation.refused["2"]


def test_an_old_introduction_is_turned_away(tmp_path: Path) -> None:
    federation = Federation(tmp_path, lambda hello, node: introduction(Hello(), node))
    assert federation.names() == []
    assert "does not answer this run's hello" in federation.refused["1"]


def test_a_lost_node_has_no_key_until_it_introduces_itself_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.names()
    assert federation.roster.key(1) is not None
    federation.roster.lost(1)
    with pytest.raises(IdentityError, match="not introduced itself"):
        federation.roster.key(1)
    federation.names()
    federation.names()
    assert federation.roster.key(1) is not None


def test_a_path_for_a_name_reads_no_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "outside.pub").write_bytes(SigningKey.generate().verifying.line("x"))

    def outside(hello: Hello, node: int) -> Introduction:
        made = introduction(hello, node)
        made.node = "../outside"
        return made

    federation = Federation(tmp_path / "nodes", outside)
    assert federation.names() == []
    assert "not registered" in federation.refused["1"]
