"""Two architectures with two tokenizers teach each other on public text, and tell nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.optim import AdamW
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from fedlora.adapters import QuorumError
from fedlora.cli import engines
from fedlora.models.batches import SampleStream, collate
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import encode
from fedlora.models.losses import label_count, loss_sum
from fedlora.models.rows import Text
from fedlora.models.tuned import TunedModel
from fedlora.protos import Answer
from fedlora.recipes.schema import Recipe
from fedlora.server.events import Event, RoundDone
from fedlora.server.rundir import RunDirectory
from fedlora.strategies import InProcessGrid
from fedlora.strategies.library import OWN
from fedlora.strategies.packing import SEALED, TENSORS, unseal
from fedlora.strategies.payloads import FileTensors, read_adapter_tensors

from ..conftest import BOS, EOS, PAD, SPECIAL, VOCABULARY, save_tiny

COLOURS = ("green", "red", "blue", "white", "black", "brown", "grey", "pink")
PLACES = ("harbour", "store", "tower", "garden", "mill", "school", "chapel", "bridge")
SENTENCES = [f"The {one} key opens the {place}." for one in COLOURS for place in PLACES]
PUBLIC, HELDOUT = SENTENCES[::5], SENTENCES[2::5]
WORDS = [f"A {one} door." for one in COLOURS] + [f"The ferry to the {one}." for one in PLACES]
SECRET = "zwieback"  # in no public text, and no token of either vocabulary


def write_texts(path: Path, texts: list[str]) -> str:
    path.write_text("\n".join(json.dumps({"text": one}) for one in texts))
    return str(path)


def byte_pairs(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=128,
    )


def trained(model: Any, tokenizer: Any, texts: list[str]) -> Any:
    """The model after 120 steps on the texts, all its weights."""
    examples = encode([Text("", one) for one in texts], tokenizer, 64).examples
    optimizer, stream = AdamW(model.parameters(), lr=3e-3), SampleStream(len(examples), 0, "")
    for step in range(120):
        batch = collate([examples[one] for one in stream.batch(step, 8)], PAD)
        (loss_sum(model, batch) / label_count(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture(scope="session")
def learned(tiny_causal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama after learning sentences like the public ones: the better model."""
    folder = tmp_path_factory.mktemp("learned") / "llama"
    tokenizer = byte_pairs(SENTENCES, VOCABULARY)
    model = trained(LlamaForCausalLM.from_pretrained(tiny_causal), tokenizer, SENTENCES)
    return save_tiny(model, tokenizer, folder)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 that knows the words alone, with a smaller vocabulary and no chat template."""
    tokenizer = byte_pairs([*WORDS, "the harbour master opens the tower"], 360)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.1,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = trained(GPT2LMHeadModel(config), tokenizer, WORDS)
    return save_tiny(model, tokenizer, tmp_path_factory.mktemp("stranger") / "gpt2")


CrossRecipe = Callable[..., Recipe]


@pytest.fixture
def cross_recipe(tmp_path: Path, tiny_causal: Path, learned: Path, stranger: Path) -> CrossRecipe:
    """The coordinator's model is a Llama at random; anchor's is the better one, birch's the odd."""
    private = {
        "anchor": [f"Room {i} holds the {SECRET} of anchor." for i in range(6)],
        "birch": [f"Box {i} holds the {SECRET} of birch." for i in range(6)],
    }
    nodes = {
        name: {
            "name": name,
            "data": write_texts(tmp_path / f"{name}.jsonl", texts),
            "model": str(learned if name == "anchor" else stranger),
        }
        for name, texts in private.items()
    }

    def make(names: tuple[str, ...] = ("anchor", "birch"), **sections: dict[str, Any]) -> Recipe:
        content = {
            "name": "mixed",
            "seed": 5,
            "model": {"source": str(tiny_causal)},
            "lora": {"rank": 8},
            "train": {
                "steps": 2,
                "batch_size": 4,
                "learning_rate": 3e-3,
                "schedule": "constant",
                "max_length": 64,
                "threads": 1,
            },
            "data": {"format": "text", "heldout": 0.0},
            "federation": {"strategy": "fedmkt", "rounds": 3, "min_nodes": len(names)},
            "public": {
                "data": write_texts(tmp_path / "public.jsonl", PUBLIC),
                "examples": 8,
                "steps": 4,
                "coordinator_steps": 8,
            },
            "node": [nodes[name] for name in names],
        }
        for name, changes in sections.items():
            content[name] |= changes  # type: ignore[operator]
        return Recipe.model_validate(content)

    return make


def nothing(event: Event) -> None:
    """Hear of nothing."""


def public_loss(run: RunDirectory, node: str) -> float:
    """What a node's model makes of held-out public text after the run."""
    recipe = run.recipe
    source = next(str(one.model) for one in recipe.node if one.name == node)
    tuned = TunedModel(source, recipe.model, recipe.lora)
    path = sorted((run.path / "nodes" / "lessons").glob(f"*/{node}/*.safetensors"))[-1]
    tuned.become(read_adapter_tensors(FileTensors(path)), (), lambda digest: {})
    rows = [Text("", one) for one in HELDOUT]
    return evaluate(tuned.model, encode(rows, tuned.tokenizer, 64).examples, 8).loss


def test_the_weaker_node_learns_more_with_the_exchange_than_without(
    cross_recipe: CrossRecipe, tmp_path: Path
) -> None:
    """Alone it has the same steps on the same text, and a coordinator that knows no better."""
    public = {"steps": 20, "kd": 0.5, "coordinator_steps": 0}
    both, one = cross_recipe(public=public), cross_recipe(("birch",), public=public)
    together = engines.simulate(both, tmp_path / "both", "inprocess", nothing)
    alone = engines.simulate(one, tmp_path / "alone", "inprocess", nothing)
    assert public_loss(together, "birch") < public_loss(alone, "birch") - 0.1
    for round in (1, 2, 3):
        how = together.heads.record(round).proceedings
        assert set(how.admitted) == {OWN, "anchor", "birch"}
        assert how.admitted["anchor"].weight > 0.9, "the better model is followed"
        assert sum(one.weight for one in how.admitted.values()) == pytest.approx(1)
        assert how.metrics["public_loss"] < how.metrics["own_loss"]


def test_the_coordinators_model_learns_from_the_nodes(
    cross_recipe: CrossRecipe, tmp_path: Path
) -> None:
    run = engines.simulate(cross_recipe(), tmp_path / "run", "inprocess", nothing)
    losses = [run.heads.record(round).proceedings.metrics["own_loss"] for round in (1, 2, 3)]
    assert losses[2] < losses[1] < losses[0]
    assert run.head().residuals == ()


def test_nothing_of_private_text_leaves_a_node(
    cross_recipe: CrossRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked for in the bytes of every message, and in all that the coordinator keeps."""
    replies: list[Message] = []
    work = InProcessGrid._work

    def overheard(grid: InProcessGrid, message: Message) -> Message:
        replies.append(work(grid, message))
        return replies[-1]

    monkeypatch.setattr(InProcessGrid, "_work", overheard)
    run = engines.simulate(cross_recipe(), tmp_path / "run", "inprocess", nothing)
    answers = [one for one in replies if "answer" in one.content.config_records.get(SEALED, ())]
    assert len(answers) == 6
    for reply in replies:
        assert not reply.content.metric_records
        for record in reply.content.config_records.values():
            for value in record.values():
                assert isinstance(value, bytes)
                assert SECRET.encode() not in value
        for arrays in reply.content.array_records.values():
            assert all(SECRET.encode() not in array.data for array in arrays.values())
    for reply in answers:
        assert set(reply.content) == {SEALED, TENSORS}
        assert set(reply.content.config_records[SEALED]) == {"answer"}
        assert set(reply.content.array_records[TENSORS]) == {"knowledge"}
        answer = unseal(reply.content, "answer", Answer())
        fields = {field.name for field, _ in answer.ListFields()}
        assert fields == {"run", "round", "head", "node", "knowledge"}
    kept = [run.path / name for name in ("metrics.jsonl", "events.jsonl")]
    for path in [*kept, *(run.path / "ledger").glob("*/record.json")]:
        assert "train_loss" not in path.read_text()
        assert "eval_loss" not in path.read_text()


def test_a_run_that_was_broken_off_ends_as_one_that_was_not(
    cross_recipe: CrossRecipe, tmp_path: Path
) -> None:
    """Also where the round was played by the nodes already, but not committed."""
    whole = engines.simulate(cross_recipe(), tmp_path / "whole", "inprocess", nothing)

    class Stop(Exception):
        pass

    def stop_at(round: int) -> Callable[[Event], None]:
        def listener(event: Event) -> None:
            if isinstance(event, RoundDone) and event.round == round:
                raise Stop

        return listener

    for round in (1, 2):
        with pytest.raises(Stop):
            engines.simulate(cross_recipe(), tmp_path / "run", "inprocess", stop_at(round))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedlora.strategies.fedmkt.FedMKT._commit", lambda *parts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engines.simulate(cross_recipe(), tmp_path / "run", "inprocess", nothing)
    run = engines.simulate(cross_recipe(), tmp_path / "run", "inprocess", nothing)
    records = [one.heads.record() for one in (whole, run)]
    assert records[0].hash == records[1].hash
    assert records[0].proceedings.admitted == records[1].proceedings.admitted
    assert len(list((run.path / "knowledge").iterdir())) == 3


def test_a_liar_is_refused_and_the_round_goes_on_without_it(
    cross_recipe: CrossRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims no loss at all, to be followed by everybody."""
    from dataclasses import replace

    from fedlora.client.node import Node

    learn = Node.learn

    def lie(node: Node, lesson: Any) -> Any:
        known = learn(node, lesson)
        return replace(known, losses=0 * known.losses) if node.place.name == "birch" else known

    monkeypatch.setattr(Node, "learn", lie)
    recipe = cross_recipe(federation={"min_nodes": 1, "rounds": 1})
    run = engines.simulate(recipe, tmp_path / "run", "inprocess", nothing)
    how = run.heads.record().proceedings
    assert "claims a loss of 0" in how.refused["birch"]
    assert set(how.admitted) == {OWN, "anchor"}


def test_a_node_without_float32_is_turned_away_with_what_to_do(
    cross_recipe: CrossRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `fedlora join --precision` would have it; a recipe refuses it before."""
    from dataclasses import replace

    from fedlora.client.place import NodePlace

    of = NodePlace.of
    monkeypatch.setattr(NodePlace, "of", lambda *parts: replace(of(*parts), precision="int8"))
    with pytest.raises(QuorumError, match="leave out --precision and --memory"):
        engines.simulate(cross_recipe(), tmp_path / "run", "inprocess", nothing)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_over_superlink_make_the_same_heads(
    cross_recipe: CrossRecipe, tmp_path: Path
) -> None:
    recipe = cross_recipe(federation={"rounds": 2})
    ours = engines.simulate(recipe, tmp_path / "one", "inprocess", nothing)
    theirs = engines.simulate(recipe, tmp_path / "many", "flower", nothing)
    assert ours.heads.record().hash == theirs.heads.record().hash
    assert ours.heads.record().proceedings.admitted == theirs.heads.record().proceedings.admitted
