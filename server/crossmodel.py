"""The coordinator's side of a cross-model run: its own model, and the public text.

Its model is that of [model]; like the nodes' it predicts public examples, and learns from those who
do better. Its adapter is the head of each round, so that `fedlora generate` and `export` take it.
"""

from collections.abc import Sequence
from pathlib import Path

from fedlora.adapters import Adapter, RecipeError
from fedlora.models.batches import SampleStream
from fedlora.models.files import read_rows
from fedlora.models.knowledge import Knowledge
from fedlora.models.public import to_record
from fedlora.models.study import Student
from fedlora.models.tuned import TunedModel, shared
from fedlora.recipes.schema import PublicSection, Recipe
from fedlora.strategies import FedMKT, Identity, Observer, Participation, Roster
from fedlora.strategies.knowledge import Bounds

from .rundir import RunDirectory

KEY = "@public"  # no node can be called so; its order of examples is the public text's


class CoordinatorsModel:
    """The model of [model] and the text of [public]."""

    def __init__(self, recipe: Recipe) -> None:
        """Read the public text.

        Raises:
            RecipeError: if there is no [public] section.
            DataError: if its data can't be used.
        """
        if recipe.public is None:
            raise RecipeError(f"{recipe.name}: a cross-model run needs a [public] section")
        self._public: PublicSection = recipe.public
        self._recipe, self._task = recipe, recipe.task
        rows = read_rows(Path(self._public.data), recipe.data)
        self._records = [to_record(row) for row in rows]
        self.size = min(self._public.examples, len(self._records))

    def batch(self, round: int) -> Sequence[str]:
        """Public examples of a round, from 1; each comes once before any comes again."""
        picks = SampleStream(len(self._records), self._recipe.seed, KEY).batch(round - 1, self.size)
        return [self._records[one] for one in picks]

    def predict(self, adapter: Adapter, records: Sequence[str]) -> Knowledge:
        """What the model knows of public examples, with this adapter."""
        return Student(self._become(adapter), self._task).predict(records)

    def study(
        self, adapter: Adapter, round: int, records: Sequence[str], sources: Sequence[Knowledge]
    ) -> Adapter:
        """The adapter after `coordinator_steps` steps; the same one if there are none."""
        if not self._public.coordinator_steps:
            return adapter
        tuned, rate = self._become(adapter), self._task.train.learning_rate
        key = f"{KEY}, round {round}"
        student = Student(tuned, self._task)
        student.study(records, sources, self._public.coordinator_steps, rate, key)
        return tuned.read()

    def _become(self, adapter: Adapter) -> TunedModel:
        tuned = shared(self._recipe.model.source, self._recipe.model, self._recipe.lora)
        tuned.become(adapter, (), lambda digest: {})
        return tuned


def across_models(
    run: RunDirectory,
    participation: Participation,
    identity: Identity,
    roster: Roster,
    observer: Observer,
) -> FedMKT:
    """The strategy of a cross-model run.

    Raises:
        DataError: if the public text can't be used.
    """
    own, recipe = CoordinatorsModel(run.recipe), run.recipe
    top_k = recipe.public.top_k if recipe.public else 0
    return FedMKT(
        run.heads.directory,
        own,
        Bounds(own.size, top_k, recipe.train.max_length),
        participation,
        identity=identity,
        roster=roster,
        observer=observer,
    )
