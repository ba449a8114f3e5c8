"""Who a node is and where its things lie; known to processes that hold no model."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedlora.adapters.errors import ModelError, RecipeError

if TYPE_CHECKING:
    from fedlora.recipes.schema import NodeSection, Task

NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")  # an alias, or owner/name of a model hub


@dataclass(frozen=True)
class NodePlace:
    """Who a node is and where its things lie.

    Attributes:
        name: by which the coordinator knows it.
        data: private examples.
        heldout: own evaluation examples; otherwise a share of `data` is held out.
        state: folder for what it has received.
        threads: torch threads; None for what the task says, or a share of this machine's cores.
        model: where this node has the base, if not where the coordinator's recipe says.
        keys: folder with this node's key and the coordinator's; None to sign and check nothing.
        precision: how it holds the frozen base; None for float32, or what fits into `memory`.
        memory: that a round of training may take, e.g. 900MB; None for no limit.
    """

    name: str
    data: Path
    heldout: Path | None
    state: Path
    threads: int | None = None
    model: str | None = None
    keys: Path | None = None
    precision: str | None = None
    memory: str | None = None

    @classmethod
    def of(
        cls, section: "NodeSection", state: Path, model: str, threads: int | None = None
    ) -> "NodePlace":
        """The place of a node that is played in a simulation.

        Args:
            section: of the recipe.
            state: its folder.
            model: where the base is, unless the node names a model of its own.
            threads: as in the class.
        """
        return cls(
            section.name,
            Path(section.data),
            Path(section.heldout) if section.heldout else None,
            state,
            threads,
            section.model or model,
            precision=section.precision,
            memory=section.memory,
        )

    def source(self, task: "Task") -> str:
        """Where this node finds the base.

        Raises:
            ModelError: if the coordinator names a place on this machine or in the net.
        """
        if self.model is None and not NAME.fullmatch(task.model.source):
            raise ModelError(
                f"the coordinator names the model {task.model.source!r}; from outside, only a "
                "model's name is taken, never a path or an address: say where this machine has "
                "it with --model"
            )
        return self.model or task.model.source

    def config(self) -> dict[str, str]:
        """The node's configuration, as `place_of` reads it."""
        return {name: str(value) for name, value in vars(self).items() if value is not None}


def place_of(config: Mapping[str, object]) -> NodePlace:
    """Where a node's things lie: from `--node-config`, or from the recipe of a simulation.

    Raises:
        RecipeError: if neither says.
    """
    from fedlora.recipes.loading import RUN_DIRECTORY, load_recipe

    if "partition-id" in config and RUN_DIRECTORY in os.environ:
        run = Path(os.environ[RUN_DIRECTORY])
        recipe = load_recipe(run / "recipe.toml")
        section = recipe.node[int(str(config["partition-id"]))]
        return NodePlace.of(section, run / "nodes", recipe.model.source)
    try:
        heldout = Path(str(config["heldout"])) if "heldout" in config else None
        threads = int(str(config["threads"])) if "threads" in config else None
        model, precision, memory = (
            str(config[key]) if key in config else None for key in ("model", "precision", "memory")
        )
        keys = Path(str(config["keys"])) if "keys" in config else None
        name, data, state = (str(config[key]) for key in ("name", "data", "state"))
    except KeyError as error:
        raise RecipeError(
            f"this node's configuration lacks {error}; `fedlora join` sets it, by hand it is "
            '--node-config \'name="..." data="/..." state="/..."\''
        ) from None
    return NodePlace(
        name, Path(data), heldout, Path(state), threads, model, keys, precision, memory
    )
