"""Cores, shared fairly between the node processes of one machine.

Two processes with two threads each on two cores are not merely slow: threads that wait by spinning
take the core from those that work. So each node gets its share of the cores, and waits passively.
"""

import os


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(threads: int | None, local_nodes: int = 1) -> int:
    """Threads of one node: as asked for, or the cores divided by the nodes on this machine."""
    return threads or max(1, cores() // local_nodes)


def set_threads(threads: int | None, local_nodes: int = 1) -> int:
    """Give this process its share of the cores; returns the number of threads."""
    import torch

    count = share(threads, local_nodes)
    torch.set_num_threads(count)
    return count


def thread_environment(threads: int) -> dict[str, str]:
    """Environment of a child process with that many threads, which wait without spinning.

    The waiting is decided when torch is loaded, so it has to be set from outside.
    """
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
    }
