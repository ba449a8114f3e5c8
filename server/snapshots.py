"""Compaction: when the log of residuals has outgrown the weights they change, those are kept too.

A node that lacks much of the log is then sent the folded weights instead. They are bit for bit what
folding gives, since the coordinator folds with the same code; the log stays, so that every round
can be derived again.
"""

from collections.abc import Sequence

from fedlora.models.tuned import FoldedWeights, TunedModel, shared
from fedlora.protos.codec import write
from fedlora.recipes.schema import Recipe
from fedlora.strategies.heads import SNAPSHOT, HeadStore, Snapshot, checked
from fedlora.strategies.payloads import FileTensors


class Snapshots:
    """Takes a snapshot of a run's folded weights when it is cheaper to send than the log."""

    def __init__(self, heads: HeadStore, recipe: Recipe, weight_bytes: int) -> None:
        """Watch a ledger.

        Args:
            heads: the ledger.
            recipe: whose base the nodes fold into.
            weight_bytes: size of all weights that residuals change.
        """
        self._heads, self._recipe, self._weight_bytes = heads, recipe, weight_bytes

    def after(self, round: int) -> Snapshot | None:
        """Take one if it is due after this round; older ones are no longer needed, and removed."""
        if self._recipe.quantize.per_width or self._recipe.lora.kind == "pooled":
            return None  # no common weights, or quantized ones that need the residuals themselves
        record = self._heads.record(round)
        last = self._heads.snapshot(record.history)
        later = record.history[last.covers :] if last else record.history
        log = [self._heads.residual_file(one) for one in later]
        if sum(path.stat().st_size for path in log) <= self._weight_bytes:
            return None
        tuned = self._folded(record.history, round, last)
        folder = self._heads.folder(round)
        scratch = folder / ".snapshot.new"
        digest = write(tuned.frozen_weights(), scratch)
        made = Snapshot(folder / SNAPSHOT.format(digest=digest), digest, len(record.history))
        scratch.rename(made.path)
        for older in self._heads.snapshot_files():
            if older != made.path:
                older.unlink()
        return made

    def _folded(self, history: Sequence[str], round: int, last: Snapshot | None) -> TunedModel:
        """The model of this process, become the round's head."""
        tuned = shared(self._recipe.model.source, self._recipe.model, self._recipe.lora)
        adapter = self._heads.adapter(round)
        tuned.become(adapter, history, self._heads.residuals, opened(last) if last else None)
        return tuned


def opened(snapshot: Snapshot) -> FoldedWeights:
    """A snapshot to start from, read module by module."""
    return FoldedWeights(snapshot.covers, FileTensors(checked(snapshot.path, snapshot.digest)))
