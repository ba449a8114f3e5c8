"""F7: two network namespaces, a slow line between them, and a line that is cut for ten seconds.

Needs root, `ip` and, for delay and loss, a kernel with netem.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedlora.cli import engines

from .conftest import RecipeOf
from .federation import Federation, running
from .test_faults import committed, wait_for

HERE, THERE = "10.77.41.1", "10.77.41.2"
SITES = ("anchor", "birch")
CUT = 10.0  # seconds


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(["ip", "netns", "add", "fedlora-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "fedlora-probe"], capture_output=True, check=False)
    return made.returncode == 0


@pytest.fixture
def line() -> Iterator[str]:
    """Namespaces `fl-hub` and `fl-site`, joined by a line; says whether it delays and loses."""
    ip("netns", "add", "fl-hub")
    ip("netns", "add", "fl-site")
    try:
        ends = ("fl0", "netns", "fl-hub"), ("fl1", "netns", "fl-site")
        ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for space, device, address in (("fl-hub", "fl0", HERE), ("fl-site", "fl1", THERE)):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", space, "link", "set", device, "up")
            ip("-n", space, "link", "set", "lo", "up")
        netem = ["tc", "-n", "fl-site", "qdisc", "add", "dev", "fl1", "root", "netem"]
        slow = subprocess.run(
            [*netem, "delay", "40ms", "loss", "1%"], capture_output=True, check=False
        )
        yield "delay and loss" if slow.returncode == 0 else "plain"
    finally:
        ip("netns", "del", "fl-hub")
        ip("netns", "del", "fl-site")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_make_namespaces(), reason="needs root and network namespaces")
def test_F7_a_line_that_is_cut_heals_without_duplicates(
    recipe_of: RecipeOf, tmp_path: Path, line: str
) -> None:
    recipe = recipe_of(SITES, federation={"rounds": 4, "min_nodes": 2, "retries": 10})
    whole = engines.simulate(recipe, tmp_path / "whole", "inprocess", lambda event: None)
    prefixes = {
        "coordinator": ("ip", "netns", "exec", "fl-hub"),
        "node": ("ip", "netns", "exec", "fl-site"),
    }
    with running(Federation(tmp_path, recipe, HERE, prefixes)) as federation:
        coordinator = federation.coordinate()
        nodes = [federation.join(site) for site in SITES]
        wait_for(committed(federation, 1))
        ip("-n", "fl-site", "link", "set", "fl1", "down")
        time.sleep(CUT)
        ip("-n", "fl-site", "link", "set", "fl1", "up")
        said = coordinator.communicate(timeout=600)[0]
        assert coordinator.returncode == 0, said
        assert [node.wait(timeout=60) for node in nodes] == [0, 0]
        assert federation.run.heads.record().hash == whole.heads.record().hash
        for round in range(1, 5):
            how = federation.run.heads.record(round).proceedings
            assert set(how.admitted) == set(SITES)
