"""Three ways to carry a run: in this process, as processes of Flower, or as actors of Ray.

One ServerApp and one ClientApp serve all three, so the same recipe, seed and number of threads give
the same head.
"""

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fedlora.adapters.errors import EngineError, RecipeError, RunError
from fedlora.protos.keys import NodeKeys
from fedlora.recipes.schema import Recipe
from fedlora.server.events import Listener, Notice, StepDone
from fedlora.server.rundir import RunDirectory

if TYPE_CHECKING:
    from fedlora.client.place import NodePlace

RESTARTS = 4  # of Flower's processes, without a round in between


def simulate(recipe: Recipe, run_dir: Path, engine: str, listener: Listener) -> RunDirectory:
    """Play coordinator and all [[node]]s of a recipe on this machine.

    Args:
        recipe: with at least one [[node]].
        run_dir: a new directory, or that of a run that was begun with this recipe.
        engine: "inprocess", "flower" or "ray".
        listener: told of what happens.

    Raises:
        FedloraError: of the class that stopped the run.
    """
    if len(recipe.node) < recipe.federation.min_nodes:
        raise RecipeError(
            f"{recipe.name}: a simulation needs a [[node]] entry for each node; there are "
            f"{len(recipe.node)}, federation.min_nodes is {recipe.federation.min_nodes}"
        )
    run = RunDirectory.begin(run_dir, recipe)
    with run.claimed():
        {"inprocess": _in_process, "flower": _as_processes, "ray": _on_ray}[engine](run, listener)
    return run


def coordinate(
    recipe: Recipe, run_dir: Path, host: str, port: int, keys: Path | None, listener: Listener
) -> RunDirectory:
    """Lead the nodes that join, by Flower's deployment engine, until the run is done.

    Flower's processes are started again if they die; the run goes on from its last round.
    """
    from .guarded import guarded, keys_for
    from .superlink import lead, superlink

    own = keys_for(keys, host)
    run = RunDirectory.begin(run_dir, recipe)
    with run.claimed():
        deaths, rounds = 0, -1  # since a round was committed
        while True:
            started = False
            try:
                with (
                    guarded(run, host, port, own, listener)
                    if own is not None
                    else superlink(run, host, port, simulation=False)
                ) as child:
                    started = True
                    lead(run, child, listener)
                return run
            except EngineError as error:
                done = len(run.heads.rounds())
                deaths, rounds = (deaths + 1, rounds) if done == rounds else (1, done)
                if deaths > RESTARTS or (deaths == 1 and not started):
                    raise
                listener(Notice(f"{error}\nstarting again; the run goes on from its last round"))
                time.sleep(2.0**deaths)


def join(address: str, place: "NodePlace", keys: NodeKeys | None, listener: Listener) -> None:
    """Serve a coordinator as a node until its run is done."""
    from filelock import FileLock, Timeout

    from fedlora.models.neighbours import counted

    from .preflight import reach
    from .supernode import serve

    reach(address, keys)
    state = place.state
    state.mkdir(parents=True, exist_ok=True)
    try:
        with counted(), FileLock(state / "lock", timeout=0):
            listener(Notice(f"node {place.name} serves {address}; its logs are in {state}"))
            serve(place, address, lambda: reach(address, keys), listener)
            listener(Notice(f"node {place.name}: the run is done"))
    except Timeout:
        raise RunError(f"{state} is in use by another node; give this one a --state-dir") from None


def _in_process(run: RunDirectory, listener: Listener) -> None:
    from fedlora.client.handlers import make_app
    from fedlora.client.node import Node
    from fedlora.client.place import NodePlace
    from fedlora.client.training import StepReport
    from fedlora.models.threads import set_threads
    from fedlora.server.coordinator import coordinate as lead
    from fedlora.strategies import InProcessGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    set_threads(run.recipe.train.threads)

    def on_step(name: str, step: StepReport) -> None:
        listener(StepDone(name, step.step, step.steps, step.loss, step.tokens_per_second))

    model = run.recipe.model.source
    nodes = [
        Node(NodePlace.of(section, run.path / "nodes", model), on_step)
        for section in run.recipe.node
    ]
    app = make_app(lambda context: nodes[int(str(context.node_config["partition-id"]))])
    lead(InProcessGrid(app, len(nodes)), run, listener, wait=0.0, poll=0.0)


def _as_processes(run: RunDirectory, listener: Listener) -> None:
    from fedlora.client.place import NodePlace
    from fedlora.models.threads import share

    from .processes import free_port
    from .superlink import lead, superlink
    from .supernode import supernode, warm, worker

    port = free_port()
    with superlink(run, "127.0.0.1", port, simulation=False) as child, ExitStack() as nodes:
        for section in run.recipe.node:
            threads = share(run.recipe.train.threads, len(run.recipe.node))
            state = run.path / "nodes" / section.name
            place = NodePlace.of(section, state, run.recipe.model.source, threads)
            nodes.enter_context(worker(place))
            nodes.enter_context(supernode(place, f"127.0.0.1:{port}", warm(place)))
        lead(run, child, listener)


def _on_ray(run: RunDirectory, listener: Listener) -> None:
    from importlib.util import find_spec

    from fedlora.models.threads import cores

    from .processes import free_port
    from .superlink import lead, superlink

    if find_spec("ray") is None:
        raise EngineError("the ray engine needs Ray: pip install 'fedlora[ray]'")
    threads = run.recipe.train.threads or max(1, cores() // len(run.recipe.node))
    federation = f"num-supernodes={len(run.recipe.node)} client-resources-num-cpus={threads}"
    with superlink(run, "127.0.0.1", free_port(), simulation=True) as child:
        lead(run, child, listener, federation)
