"""Cores are shared, and child processes wait without spinning."""

import os
import subprocess
import sys

import torch

from fedlora.models.threads import cores, set_threads, share, thread_environment


def test_the_cores_are_divided() -> None:
    assert cores() == len(os.sched_getaffinity(0))
    assert share(None) == cores()
    assert share(None, local_nodes=10 * cores()) == 1
    assert share(3, local_nodes=2) == 3


def test_torch_gets_its_share() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(1) == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_child_has_the_threads_and_waits_passively() -> None:
    code = "import torch; print(torch.get_num_threads(), torch.__config__.parallel_info())"
    environment = {**os.environ, **thread_environment(1)}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert child.stdout.startswith("1 ")
    assert thread_environment(1)["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_module_leaves_torch_alone_until_asked() -> None:
    code = "import sys, fedlora.models.threads; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
