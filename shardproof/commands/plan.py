"""``shardproof plan``: write the plan of a model from the zoo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from shardproof.commands.options import PATH

_Command = Callable[..., Any]
_LOSSES: Final = ("token-mean", "mean", "sum")


def _degree(name: str, text: str) -> Callable[[_Command], _Command]:
    """An option for one degree; without it the parallelization's file decides, else it is 1."""
    return click.option(f"--{name}", type=int, metavar="N", help=f"{text}  [default: 1]")


@click.command(short_help="Write the plan of a model from the zoo.")
@click.argument("model")
@click.option(
    "--parallel",
    metavar="NAME_OR_FILE",
    help="A parallelization by its name in configs/parallel, or a .toml; options override it.",
)
@_degree("dp", "Data-parallel replicas.")
@_degree("tp", "Tensor-parallel ranks.")
@_degree("pp", "Pipeline stages.")
@_degree("ep", "Expert-parallel ranks, a part of the data-parallel ones.")
@_degree("cp", "Context-parallel ranks: the sequence is divided.")
@_degree("microbatches", "Per replica.")
@_degree("microbatch-size", "Sequences in one microbatch.")
@click.option(
    "--sequence-parallel/--no-sequence-parallel",
    default=None,
    help="Divide the sequence among tensor-parallel ranks outside of their blocks.",
)
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    help="Divide over replicas: 1 gradients once accumulated, 2 also while they are, 3 parameters "
    "too.  [default: 0]",
)
@_degree("virtual-stages", "Parts of the model that each pipeline stage holds (interleaved).")
@click.option(
    "--loss",
    type=click.Choice(_LOSSES),
    help="How the losses of tokens combine (docs/zoo.md).  [default: token-mean]",
)
@click.option("--layers", type=int, metavar="N", help="Another number of layers than the model's.")
@click.option(
    "-o",
    "--out",
    type=PATH,
    required=True,
    metavar="PLAN_DIR",
    help="The folder to write; a plan in it is replaced.",
)
def plan(model: str, parallel: str | None, out: Path, **options: Any) -> int:
    """Write both sides of a plan for MODEL: a model of the zoo by its name, or a .toml file.

    Models: llama3-8b, llama3-70b, llama3-405b, gpt3-175b, mixtral-8x7b, deepseek-16b,
    deepseek-236b, deepseek-v3-671b.
    """
    from shardproof.engine.plan_files import store
    from shardproof.frontends import zoo

    settings = {} if parallel is None else zoo.parallelization(parallel)
    settings |= {key: value for key, value in options.items() if value is not None}
    made = zoo.build(model, **settings)
    store.save(made, out)
    click.echo(f"{made.name}: {made.ranks} ranks, in {out}")
    return 0
