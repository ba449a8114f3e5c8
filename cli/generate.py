"""`fedlora generate`: what the tuned model answers."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Round, RunArgument

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EXAMPLE = 'Example: fedlora generate runs/demo "When does the ferry leave?" --compare'


def generate(
    run: RunArgument,
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT...", help="What to ask.", show_default=False),
    ],
    round: Round = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show the base model's answer beside it.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token each time.")
    ] = 0.0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Decide near ties as one-by-one decoding does; see the docs."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling, where temperature > 0.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Answer prompts with the head of a run, or with the model in a folder."""
    from fedlora.client import inference
    from fedlora.models.cache import cache_folder
    from fedlora.recipes.schema import DataSection
    from fedlora.server.rundir import RunDirectory

    from .tuned import base, tuned, whole

    if (run / "config.json").is_file():
        if compare or round is not None:
            raise typer.BadParameter(
                "is for a run; this is a model", param_hint="--compare/--round"
            )
        opened, data_format = None, DataSection().format
    else:
        opened = RunDirectory.open(run)
        data_format = opened.recipe.data.format

    def answer(
        model: "PreTrainedModel | PeftModel", tokenizer: "PreTrainedTokenizerBase"
    ) -> list[str]:
        """The model is gone when this returns, so that one at a time is in memory."""
        return inference.generate(
            model,
            tokenizer,
            prompts,
            max_new_tokens,
            temperature,
            seed,
            data_format,
            memory=cache_folder("drafts"),
            strict=strict,
        )

    answers = {"base": answer(*base(opened.recipe))} if opened and compare else {}
    answers["tuned"] = answer(*(tuned(opened, round) if opened else whole(str(run))))
    for index, prompt in enumerate(prompts):
        given = {name: replies[index] for name, replies in answers.items()}
        if as_json:
            typer.echo(json.dumps({"prompt": prompt, **given}, ensure_ascii=False))
        elif len(prompts) == 1 and not compare:
            typer.echo(given["tuned"])
        else:
            lines = [f"{name:>6}  {reply}" for name, reply in given.items()]
            typer.echo("\n".join([f"prompt  {prompt}", *lines, ""]))
