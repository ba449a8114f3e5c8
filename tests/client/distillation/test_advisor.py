"""The advisor on tiny models: what it refuses, how it ranks, and what it says decided."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from fedlora.adapters import DataError
from fedlora.client.distillation import advisor
from fedlora.client.distillation.advisor import Advice, Budget, Candidate, Row, advise
from fedlora.client.distillation.capacity import NotIdentified, Vertex
from fedlora.client.distillation.comparison import compare
from fedlora.client.distillation.eligibility import licence
from fedlora.models.batches import collate
from fedlora.models.examples import Example, encode
from fedlora.models.losses import label_count, loss_sum
from fedlora.models.rows import Text

from ...conftest import CORPUS, EOS, PAD, VOCABULARY, save_tiny

BUDGET = Budget(tokens=1000)


def llama(width: int = 32, vocabulary: int = VOCABULARY, initial: float = 0.1) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=initial,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        return LlamaForCausalLM(config)


def taught(model: LlamaForCausalLM, examples: Sequence[Example], steps: int) -> LlamaForCausalLM:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch = collate(examples, PAD)
    for _ in range(steps):
        optimizer.zero_grad()
        (loss_sum(model, batch) / label_count(batch)).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def examples(tiny_tokenizer: PreTrainedTokenizerFast) -> Sequence[Example]:
    return encode([Text("corpus", text) for text in CORPUS], tiny_tokenizer, 64).examples


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
) -> dict[str, Path]:
    """Of a student and of candidates, by name."""
    root = tmp_path_factory.mktemp("advisor")
    models = {
        "student": llama(),
        "good": taught(llama(48), examples, 15),
        "better": taught(llama(64), examples, 40),
        "best": taught(llama(80), examples, 60),
        "worse": llama(initial=0.8),
        "padded": llama(vocabulary=VOCABULARY + 16),
    }
    found = {n: save_tiny(m, tiny_tokenizer, root / n) for n, m in models.items()}
    found["foreign"] = save_tiny(models["best"], tiny_tokenizer, root / "foreign")
    path = found["foreign"] / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    swapped = {"a": vocabulary["b"], "b": vocabulary["a"]}
    content["model"]["vocab"] = {**vocabulary, **swapped}
    path.write_text(json.dumps(content), "utf-8")
    return found


@pytest.fixture
def ask(folders: dict[str, Path], examples: Sequence[Example]) -> Callable[..., Advice]:
    """Advice for the student on these candidates."""

    def asked(*names: str, budget: Budget = BUDGET, **more: Any) -> Advice:
        candidates = [Candidate(name, str(folders[name])) for name in names]
        draw = torch.Generator().manual_seed(0)
        return advise(str(folders["student"]), candidates, examples, budget, draw, **more)

    return asked


def only(advice: Advice) -> Row:
    [row] = advice.rows
    return row


def test_teachers_are_ranked_by_their_loss_on_the_text(ask: Callable[..., Advice]) -> None:
    advice = ask("good", "worse", "best", "better")
    assert [row.name for row in advice.rows] == ["best", "better", "good", "worse"]
    assert [row.rank for row in advice.rows] == [1, 2, 3, None]
    assert {row.decided_by for row in advice.rows} == {"measurement"}
    best = advice.rows[0]
    assert best.measured is not None
    assert best.measured.student_loss == pytest.approx(advice.student_loss)
    assert best.flops == 1000 * (6 * advice.student_parameters + 2 * (best.parameters or 0))
    assert advice.vertex is None
    assert advice.law_size is None  # the student is far too small for it
    assert not advice.law_holds


def test_a_worse_teacher_is_refused(ask: Callable[..., Advice]) -> None:
    row = only(ask("worse"))
    assert row.rank is None
    assert row.decided_by == "measurement"
    assert "the teacher is not better on this text" in row.reason


def test_another_vocabulary_size_is_refused(ask: Callable[..., Advice]) -> None:
    row = only(ask("padded"))
    assert (row.rank, row.decided_by, row.measured) == (None, "gate", None)
    assert "416" in row.reason
    assert "400" in row.reason
    assert "prune" in row.reason


def test_another_tokenizer_of_the_same_size_is_refused(ask: Callable[..., Advice]) -> None:
    row = only(ask("foreign"))
    assert (row.rank, row.decided_by) == (None, "gate")
    assert "not the same" in row.reason


def test_a_teacher_that_does_not_fit_is_refused(ask: Callable[..., Advice]) -> None:
    small = ask("good").rows[0].memory
    assert small is not None
    advice = ask("best", "good", budget=Budget(1000, memory=small))
    assert [(row.name, row.rank) for row in advice.rows] == [("good", 1), ("best", None)]
    assert "may be used; take a smaller teacher" in advice.rows[1].reason


def test_a_candidate_that_is_not_there_costs_its_row_alone(
    folders: dict[str, Path], examples: Sequence[Example], tmp_path: Path
) -> None:
    candidates = [Candidate("none", str(tmp_path)), Candidate("good", str(folders["good"]))]
    advice = advise(str(folders["student"]), candidates, examples, BUDGET, torch.Generator())
    assert [row.name for row in advice.rows] == ["good", "none"]
    assert "lacks config.json" in advice.rows[1].reason


def test_licences(ask: Callable[..., Advice], folders: dict[str, Path], tmp_path: Path) -> None:
    assert only(ask("good")).licence is None
    refused = only(ask("good", budget=Budget(1000, licences=("mit",))))
    assert "not named in its files; allowed are mit" in refused.reason
    (tmp_path / "config.json").write_text('{"license": "llama3"}')
    assert licence(tmp_path) == "llama3"
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    assert licence(tmp_path) == "apache-2.0"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text("license: said in passing\n")
    (tmp_path / "LICENSE.txt").write_text("\n  MIT License\n\nCopyright\n")
    assert licence(tmp_path) == "MIT License"


def test_the_law_decides_between_teachers_that_measure_alike(
    ask: Callable[..., Advice], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {row.name: row.parameters or 0 for row in ask("best", "better").rows}
    monkeypatch.setattr(advisor, "law_distance", lambda n, s: abs(n - sizes["better"]) / 1e6)
    assert [row.decided_by for row in ask("best", "better").rows] == ["measurement"] * 2
    monkeypatch.setattr(advisor, "ALIKE", 10.0)
    advice = ask("best", "better")
    assert [row.name for row in advice.rows] == ["better", "best"]
    assert {row.decided_by for row in advice.rows} == {"prior"}
    assert "distance to the law's size decides" in advice.rows[0].reason


def curve(lowest: int) -> Callable[[PreTrainedModel, int], float]:
    """A pilot whose students learn best from a teacher of a width."""

    def pilot(teacher: PreTrainedModel, seed: int) -> float:
        return 2 + abs(teacher.config.hidden_size - lowest) / 100 + seed / 1000

    return pilot


def test_pilots_overrule_the_measurement(ask: Callable[..., Advice]) -> None:
    advice = ask("good", "better", "best", "worse", pilot=curve(65))
    assert [row.name for row in advice.rows] == ["better", "best", "good", "worse"]
    assert [row.decided_by for row in advice.rows] == ["pilot"] * 3 + ["measurement"]
    assert advice.rows[0].pilot_losses == pytest.approx((2.01, 2.011, 2.012))
    assert isinstance(advice.vertex, Vertex)
    better = advice.rows[0].parameters or 0
    assert advice.vertex.size == pytest.approx(better, rel=0.2)


def test_an_unidentified_vertex_is_refused(ask: Callable[..., Advice]) -> None:
    for names, lowest, reason in (
        (("good", "better", "best"), 1000, "open upwards|larger teachers"),
        (("good", "best", "worse"), 64, "found 2"),
    ):
        advice = ask(*names, pilot=curve(lowest))
        assert isinstance(advice.vertex, NotIdentified)
        assert any(part in advice.vertex.reason for part in reason.split("|"))
        assert advice.rows[0].decided_by == "pilot"  # the lowest loss still is


def test_an_empty_transfer_set_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="transfer set is empty"):
        advise(str(folders["student"]), [], [], BUDGET, torch.Generator())


def test_the_comparison_is_that_of_whole_logits(examples: Sequence[Example]) -> None:
    student, teacher = llama(32).eval(), llama(48).eval()
    found = compare(teacher, student, examples, chunk=7)
    own, other, targets = [], [], []
    with torch.inference_mode():
        for example in examples:
            ids = torch.tensor([example.input_ids])
            own.append(student(ids).logits[0, :-1])
            other.append(teacher(ids).logits[0, :-1])
            targets.append(ids[0, 1:])
    q, p, gold = (
        torch.cat(own).log_softmax(-1),
        torch.cat(other).log_softmax(-1),
        torch.cat(targets),
    )
    assert found.teacher_loss == pytest.approx(F.nll_loss(p, gold).item(), rel=1e-4)
    assert found.student_loss == pytest.approx(F.nll_loss(q, gold).item(), rel=1e-4)
    expected = (p.exp() * (p - q)).sum(-1).mean().item()
    assert found.divergence == pytest.approx(expected, rel=1e-4)
    assert found.agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).double().mean().item())
