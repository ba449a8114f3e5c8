"""Nodes on one machine count each other, and forget those that died."""

import os
import subprocess
import sys

from fedlora.models import neighbours
from fedlora.models.cache import cache_folder


def test_a_node_counts_while_it_runs() -> None:
    assert neighbours.count() == 0
    with neighbours.counted():
        assert neighbours.count() == 1
        code = "from fedlora.models import neighbours\n"
        code += "with neighbours.counted(): print(neighbours.count())"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert found.stdout.split() == [b"2"]
        assert neighbours.count() == 1
    assert neighbours.count() == 0


def test_a_node_that_was_killed_is_forgotten() -> None:
    code = "import os, signal\nfrom fedlora.models import neighbours\n"
    code += "with neighbours.counted(): os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert [mark.name for mark in cache_folder("running").iterdir()] != [str(os.getpid())]
    assert neighbours.count() == 0
    assert list(cache_folder("running").iterdir()) == []
