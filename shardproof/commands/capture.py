"""``shardproof capture``: record one side of a PyTorch job, as a folder of traces."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from shardproof.frontends.torch.stated import TensorSpec

_BATCH: Final = re.compile(r"(\w+)=(\d+(?:x\d+)*):(\w+)(?:\[(-?\d+),(-?\d+)\))?")

F = TypeVar("F", bound=Callable[..., Any])

#: Options of ``verify`` about folders of traces, and none of `shardproof.run.options.Options`.
NAMES: Final = ("combine", "validated")


def of_traces(command: F) -> F:
    """The options of ``verify`` about folders of traces, for example ``--combine mean`` and
    ``--validate``.
    """
    combine = click.option(
        "--combine",
        type=click.Choice(("mean", "sum")),
        help="How losses of recorded ranks have to combine.  [default: found, and printed]",
    )
    validate = click.option(
        "--validate",
        "validated",
        is_flag=True,
        help="Evaluate what was recorded, or the graphs, on random values, and compare.",
    )
    return combine(validate(command))


@click.command(short_help="Record one side of a PyTorch job.")
@click.argument("step", metavar="FILE.py[:FUNCTION]")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]...")
@click.option(
    "--world-size",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Ranks; 1 for the single-device side.",
)
@click.option(
    "--batch",
    multiple=True,
    metavar="NAME=SHAPE:DTYPE",
    help="A tensor of the full batch, such as tokens=16x8192:int64; ids in [0, 32000) are "
    "'tokens=16x8192:int64[0,32000)'.",
)
@click.option(
    "--single",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE.pt2",
    help="The single-device side, whose full parameters the step may ask for.",
)
@click.option(
    "--ranks",
    default="auto",
    show_default=True,
    metavar="auto|all|N,N-N",
    help="Which ranks are captured: as many as it takes (all up to 16), all, or these.",
)
@click.option(
    "--executor",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Where ranks are captured.",
)
@click.option("--address", metavar="HOST:PORT", help="A running Ray cluster.")
@click.option(
    "--capture-timeout",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For one rank.",
)
@click.option(
    "--capture-memory", default="8GiB", show_default=True, metavar="SIZE", help="For one rank."
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to write, new or empty.",
)
def capture(
    step: str,
    args: tuple[str, ...],
    world_size: int,
    batch: tuple[str, ...],
    single: Path | None,
    ranks: str,
    executor: str,
    address: str | None,
    capture_timeout: float,
    capture_memory: str,
    out: Path,
) -> int:
    """Run FUNCTION of FILE.py once per rank on fake tensors, and write what it does.

    Without a FUNCTION the file is a script, with ARGS, whose first step in sp.recording is written.
    The file is executed, with your rights. Then: shardproof verify DIR_SINGLE DIR_PARALLEL.
    """
    from shardproof.cluster.settings import Settings, parse_size
    from shardproof.frontends.torch import version

    version.require()
    from shardproof.frontends.torch.capture import Limits
    from shardproof.inputs import traces
    from shardproof.report.words import many
    from shardproof.torch.run import chosen

    given = dict(_batch(text) for text in batch)
    alone = None if single is None else traces.alone(single)
    try:
        limits = Limits(capture_timeout, parse_size(capture_memory))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    wanted = _ranks(ranks)
    cluster = Settings(executor="ray", address=address) if executor == "ray" else None
    captured = chosen(_step(step, args), world_size, wanted, given, alone, limits, {}, cluster)
    traces.keep(captured, out)
    events = sum(len(t.events) for t in captured)
    all_of_them = many(len(captured), "rank")
    who = f"{len(captured)} of {world_size} ranks" if len(captured) < world_size else all_of_them
    click.echo(f"{who}, {many(events, 'event')}, in {out}")
    return 0


def _ranks(text: str) -> str | list[int]:
    """The ranks that ``--ranks`` names; raises a usage error for what names none."""
    if text in ("auto", "all"):
        return text
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise click.UsageError(f"--ranks {text}: expected auto, all, or numbers as in 0,1,4-7")
        first, last = match.groups()
        if int(last or first) - int(first) > 1 << 20:
            raise click.UsageError(f"--ranks {text}: too many")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _batch(text: str) -> tuple[str, TensorSpec]:
    """A batch tensor from its text; raises a usage error that says how one is written."""
    from shardproof.frontends.torch.capture import is_dtype
    from shardproof.frontends.torch.stated import TensorSpec

    match = _BATCH.fullmatch(text)
    if match is None:
        raise click.UsageError(
            f"--batch {text}: expected NAME=SHAPE:DTYPE, such as tokens=16x8192:int64[0,32000)"
        )
    name, shape, dtype, low, high = match.groups()
    if not is_dtype(dtype):
        raise click.UsageError(f"--batch {text}: {dtype} is no element type of torch")
    bounds = (None, None) if low is None else (int(low), int(high))
    return name, TensorSpec(tuple(int(n) for n in shape.split("x")), dtype, *bounds)


def _step(step: str, args: tuple[str, ...]) -> Any:
    """What is run on every rank: a function, or a script with its arguments."""
    from shardproof.torch.script import step_of

    if step.endswith(".py") and Path(step).is_file():
        return step_of(Path(step), args)
    if args:
        raise click.UsageError(f"{step} is given arguments ({args[0]}), and is no script")
    return _function(step)


def _function(step: str) -> Any:
    """The function that FILE.py:FUNCTION names; the file is executed."""
    import runpy
    import sys

    from shardproof.engine.errors import InvalidInput
    from shardproof.frontends.torch.capture import exception_text

    path, colon, name = step.rpartition(":")
    if not colon or not Path(path).is_file():
        raise click.UsageError(
            f"{step}: expected FILE.py:FUNCTION or FILE.py, and a file that is there"
        )
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        function = runpy.run_path(path).get(name)
    except (Exception, SystemExit) as error:
        raise InvalidInput(exception_text(error, path)) from error
    if not callable(function):
        raise click.UsageError(f"{path} has no function {name}")
    return function
