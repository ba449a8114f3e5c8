"""Generation by draft trees: the loop.

Each step grows a tree from what is remembered, verifies it in one forward pass, goes along it as
far as the model agrees, and recycles what it saw. Lossless means: every token is the model's own
choice at its position, given exactly the tokens before it. What drafts change is how many tokens
are looked at together, and that can round differently: where the two best tokens are nearly equal
(a near tie), another may win than one by one. Near ties are counted; `strict` decides them as plain
decoding would.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from .costs import Costs
from .drafts import Drafter
from .forms import Precision
from .kernels import Kernels
from .matrix import Chances, Ids
from .paper import PaperDrafter
from .plain import plainly
from .request import Request
from .sampling import Choice, Chooser
from .selftest import refusal
from .strict import Plain
from .tables import Tables
from .target import Target
from .tree import Tree
from .verify import walk

Shape = Literal["dynamic", "paper", "none"]
# Gap of the two best logits below which rounding may decide; five times what was ever measured.
NEAR = {torch.float32: 1e-3, torch.float64: 1e-9}
COARSE = 0.75
PHASES = ("prompt", "draft", "forward", "choose", "learn")


@dataclass
class Account:
    """What a text took.

    Attributes:
        tokens: generated.
        steps: forward passes after the prompt's.
        nodes: tokens that went through them.
        near_ties: positions where rounding may have decided.
        replayed: forward passes of one token that `strict` added.
        seconds: for the prompt, drafting, the forward passes, choosing, and recycling.
    """

    tokens: int = 0
    steps: int = 0
    nodes: int = 0
    near_ties: int = 0
    replayed: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("prompt", "draft", "forward", "choose", "learn"), 0.0
        )
    )


class _Drafts(Protocol):
    """What grows trees: `Drafter`, or `PaperDrafter`."""

    def begin(self, prompt: Sequence[int]) -> None: ...
    def grow(self, text: Sequence[int], most: int, deepest: int) -> Tree: ...
    def extend(self, tokens: Sequence[int], text: Sequence[int]) -> None: ...
    def learn(
        self, tree: Tree, before: int, top: tuple[Ids, Chances], path: Sequence[int]
    ) -> None: ...


class Decoder:
    """Generates with one model, one text at a time; a context manager that leaves the model as
    it was.

    Attributes:
        refusal: why the model cannot verify trees, which are then not used; None if it can.
        tables: what is remembered.
        costs: what forward passes cost.
        account: of the latest text.
        kernels: the model's layers as they are multiplied.
    """

    def __init__(
        self,
        model: Any,
        tables: Tables | None = None,
        tree: Shape = "dynamic",
        strict: bool = False,
        precision: Precision | None = None,
        packed: bool = True,
    ) -> None:
        """Test the model, and prepare its layers.

        Args:
            model: a causal language model of transformers, or PEFT's wrapper, in evaluation mode.
            tables: to go on with, and to write to.
            tree: "dynamic", the published "paper", or "none" for one token at a time.
            strict: decide near ties as plain decoding does.
            precision: of the linear layers; None leaves it.
            packed: whether to multiply by whatever is fastest here; if not, as the model does.
        """
        self.refusal = refusal(model)
        self._model = model
        self._target = Target(model)
        vocabulary = int(self._target.model.config.get_text_config().vocab_size)
        self.tables = tables or Tables(vocabulary)
        self.costs = Costs()
        self.account = Account()
        self._shape = tree
        self._drafter = _drafter(tree, self.tables)
        self.kernels = Kernels(
            self._target.model, precision, leave=bool(self.refusal) or not packed
        )
        self._plain = Plain(self._target.model, self.kernels) if strict else None
        self._near = NEAR.get(self._target.model.dtype, COARSE)

    def __enter__(self) -> "Decoder":
        """The decoder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the model."""
        self.close()

    def close(self) -> None:
        """Restore the model's layers."""
        self.kernels.close()

    def forget(self) -> None:
        """Begin again with empty tables; what forward passes cost is still known."""
        self.tables = Tables(len(self.tables.matrix.ids))
        self._drafter = _drafter(self._shape, self.tables)

    def generate(self, prompt: Sequence[int], request: Request) -> list[int]:
        """The tokens that follow a prompt, the ending one included."""
        return [token for piece in self.stream(prompt, request) for token in piece]

    def stream(self, prompt: Sequence[int], request: Request) -> Iterator[list[int]]:
        """The same, as they come: several at a time."""
        if self.refusal:
            (tokens,) = plainly(self._model, [prompt], request)
            self.account = Account(len(tokens), len(tokens), len(tokens))
            yield tokens
            return
        stream = self._steps(prompt, request)
        while True:
            with torch.inference_mode():  # not held while the caller has the floor
                piece = next(stream, None)
            if piece is None:
                return
            yield piece

    def _steps(self, prompt: Sequence[int], request: Request) -> Iterator[list[int]]:
        text = list(prompt)
        self.account = account = Account()
        chooser = Chooser(
            len(text), request.temperature, request.seed, request.top_k, request.top_p,
            request.processors,
        )  # fmt: skip
        if self._plain:
            self._plain.begin(prompt)
        clock = _Clock(account)
        logits = self._target.begin(prompt)
        self._drafter.begin(prompt)
        clock.lap("prompt")
        piece = [self._decide(chooser, chooser.choose(logits, text), text)]
        while True:
            self._drafter.extend(piece, text)
            text += piece
            account.tokens += len(piece)
            yield piece
            if self._ended(text, len(prompt), request):
                return
            clock.lap("draft")
            piece = self._step(text, len(prompt), request, chooser, clock)

    def _step(
        self, text: list[int], start: int, request: Request, chooser: Chooser, clock: "_Clock"
    ) -> list[int]:
        """One forward pass; returns the tokens that it brought."""
        tree = self._draft(text, start + request.max_new_tokens - len(text))
        clock.lap("draft")
        logits = self._target.step(tree)
        seconds = clock.lap("forward")
        top = candidates(logits)
        likeliest = _likeliest(logits, top[0]) if chooser.plain else None

        def choose(node: int, chosen: list[int]) -> int:
            before = text + chosen
            found = likeliest[node] if likeliest else chooser.choose(logits[node], before)
            return self._decide(chooser, found, before)

        def ended(chosen: list[int]) -> bool:
            return self._ended(text + chosen, start, request)

        taken = walk(tree, choose, ended)
        seconds += clock.lap("choose")
        self._target.keep(taken.path)
        ids, chances = top[1:]
        self._drafter.learn(
            tree, text[-2] if len(text) > 1 else text[-1], (ids, chances), taken.path
        )
        self.costs.observe(len(tree), seconds, len(taken.tokens))
        self.account.steps += 1
        self.account.nodes += len(tree)
        clock.lap("learn")
        return taken.tokens

    def _draft(self, text: list[int], left: int) -> Tree:
        """A tree of the size that pays best, and no deeper than tokens are left."""
        deepest = left - 1
        if self._shape == "none" or deepest == 0:
            return Tree([text[-1]], [-1])
        if self._shape == "paper":
            return self._drafter.grow(text, 0, deepest)
        tree = self._drafter.grow(text, self.costs.largest, deepest)
        wanted = self.costs.next_size()
        if wanted is not None:
            return tree.first(wanted).padded(wanted)
        return tree.first(self.costs.best(tree.scores))

    def _decide(self, chooser: Chooser, found: Choice, text: list[int]) -> int:
        """The token of a choice; in case of a near tie counted, and looked at again if strict."""
        if found.gap >= self._near:
            return found.token
        self.account.near_ties += 1
        if not self._plain:
            return found.token
        logits, passes = self._plain.after(text)
        self.account.replayed += passes
        return chooser.choose(logits, text).token

    def _ended(self, text: list[int], start: int, request: Request) -> bool:
        if text[-1] in request.ends or len(text) - start >= request.max_new_tokens:
            return True
        if not request.stopping:
            return False
        ids = torch.tensor([text])
        return any(bool(torch.as_tensor(rule(ids, None)).all()) for rule in request.stopping)


def _drafter(shape: Shape, tables: Tables) -> _Drafts:
    return PaperDrafter(tables) if shape == "paper" else Drafter(tables)


class _Clock:
    """Splits time among the account's entries."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._last = time.perf_counter()

    def lap(self, name: str) -> float:
        """Book the seconds since the last lap, and return them."""
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        self._account.seconds[name] += spent
        return spent


def candidates(logits: Tensor) -> tuple[Tensor, Ids, Chances]:
    """The best logits of each node, (nodes, width); and their tokens and probabilities."""
    width = min(8, logits.shape[-1])
    values, ids = logits.topk(width)
    chances = (values - logits.logsumexp(-1, keepdim=True)).float().exp()
    return values, ids.cpu().numpy().astype(np.int32), chances.cpu().numpy().astype(np.float16)


def _likeliest(logits: Tensor, values: Tensor) -> list[Choice]:
    """The likeliest token of each node; of equals the first, as `argmax` has it."""
    gaps = (values[:, 0] - values[:, 1]).tolist()
    return [Choice(token, gap) for token, gap in zip(logits.argmax(-1).tolist(), gaps, strict=True)]
