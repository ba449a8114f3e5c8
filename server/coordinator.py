"""A run from its recipe to its last head, whatever engine carries the messages."""

from pathlib import Path

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from fedlora.adapters import QuorumError, repeated
from fedlora.models.fingerprint import fingerprint
from fedlora.models.loading import empty_base
from fedlora.models.lora import attach, initial_adapter, lora_layers, weight_count
from fedlora.models.source import resolve
from fedlora.protos import Hello
from fedlora.protos.keys import CoordinatorKeys
from fedlora.recipes.identity import recipe_fingerprint
from fedlora.recipes.schema import Recipe
from fedlora.strategies import STRATEGIES, FederatedLoRA, Identity, Participation, pack

from .crossmodel import across_models
from .evaluation import own_evaluation
from .events import Listener, Notice, RunDone, RunStarted
from .reporting import Reporter
from .roster import IntroducedNodes
from .rundir import RunDirectory
from .snapshots import Snapshots
from .subnets import DrawnSubnets

FAREWELL = 60.0  # seconds for the nodes of a run that is over to come and be told so


def coordinate(
    grid: Grid,
    run: RunDirectory,
    listener: Listener,
    wait: float,
    poll: float,
    keys: Path | None = None,
) -> None:
    """Lead the nodes behind `grid` through all rounds of the run.

    Args:
        grid: Flower's connection to the nodes.
        run: a run directory; rounds that it holds already are not run again.
        listener: told of what happens.
        wait: seconds to wait for enough nodes; 0 where no other can come.
        poll: seconds between two looks for nodes or replies.
        keys: folder with the coordinator's and the registered nodes' keys; None to sign nothing.

    Raises:
        FedloraError: if the model, the nodes or their number don't allow the run to go on.
    """
    recipe = run.recipe
    reporter = Reporter(run, listener)
    folder = resolve(recipe.model.source)
    base, task = fingerprint(folder), recipe.task.model_dump_json()
    own = CoordinatorKeys.open(keys) if keys else None
    key = own.signing if own else None
    roster = IntroducedNodes(
        Hello(run=recipe.name, base=base, task=task),
        [node.name for node in recipe.node],
        recipe.federation.wait,
        lambda node, reason: reporter.refused(0, node, reason),
        poll,
        key,
        own.nodes_folder if own else None,
    )
    over = run.heads.rounds()[-1:] == [recipe.federation.rounds]
    empty = attach(empty_base(folder, recipe.model), recipe.lora, recipe.model)
    sizes = {name: weight_count(layer) for name, layer in lora_layers(empty).items()}
    quantize = recipe.quantize
    subnets = DrawnSubnets(recipe, sizes, roster) if quantize.per_width else None
    taking_part = participation(recipe, min(wait, FAREWELL) if over else wait, poll)
    identity = Identity(recipe.name, base, task, recipe_fingerprint(recipe), key)
    strategy: FederatedLoRA = (
        across_models(run, taking_part, identity, roster, reporter)
        if recipe.public
        else STRATEGIES[recipe.federation.strategy](
            run.heads.directory,
            taking_part,
            identity=identity,
            roster=roster,
            observer=reporter,
            missing="skip" if quantize.per_width else recipe.federation.missing_modules,
            # What is pooled folds into the offsets of quantized weights: there all take residuals.
            side_rank=None if recipe.lora.kind == "pooled" else quantize.side_rank,
            subnets=subnets,
            full_history=False,
        )
    )
    snapshots = Snapshots(run.heads, recipe, 4 * sum(sizes.values()))
    evaluation = own_evaluation(run) if recipe.evaluate.data else None

    def committed(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        snapshots.after(round)
        if subnets and round:
            reporter.covered(round, subnets.coverage.metrics())
        if evaluation is None:
            return None
        metrics = evaluation(round)
        reporter.coordinator_evaluated(round, metrics)
        return MetricRecord(dict(metrics))

    try:
        nodes = strategy.participation.gather(grid, roster)
    except QuorumError:
        if not over:
            raise
        reporter.tell(run_done(run))  # and no node is left to be told
        return
    reporter.tell(RunStarted(recipe.name, tuple(sorted(nodes.values())), recipe.federation.rounds))
    for one in roster.introductions():
        cut = f", {one.truncated} cut to {recipe.train.max_length} tokens" * bool(one.truncated)
        reporter.tell(Notice(f"{one.node}: {one.examples} examples, {one.heldout} held out{cut}"))
    initial = initial_adapter(empty, recipe.seed)
    strategy.start(
        grid,
        pack(repeated(initial, quantize.widths) if quantize.per_width else initial),
        num_rounds=recipe.federation.rounds,
        timeout=recipe.federation.deadline,
        evaluate_fn=committed,
    )
    reporter.tell(run_done(run))


def run_done(run: RunDirectory) -> RunDone:
    """The end of a run, with the worst receipt of all its rounds."""
    receipts = [run.heads.record(round).proceedings.worst_receipt for round in run.heads.rounds()]
    return RunDone(run.path, run.heads.record().hash, max(receipts))


def participation(recipe: Recipe, wait: float, poll: float) -> Participation:
    """Who takes part, as the recipe has it."""
    federation = recipe.federation
    return Participation(
        min_nodes=federation.min_nodes,
        sample=federation.sample,
        wait=wait,
        retries=federation.retries,
        max_norm_ratio=federation.max_norm_ratio,
        seed=recipe.seed,
        poll=poll,
    )
