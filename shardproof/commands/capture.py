"""``shardproof capture``: record one side of a PyTorch job, as a folder of traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from shardproof.frontends.torch.stated import TensorSpec

_BATCH: Final = re.compile(r"(\w+)=(\d+(?:x\d+)*):(\w+)(?:\[(-?\d+),(-?\d+)\))?")


@click.command(short_help="Record one side of a PyTorch job.")
@click.argument("step", metavar="FILE.py:FUNCTION")
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
    metavar="DIR",
    help="The single-device side, whose full parameters the step may ask for.",
)
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
    world_size: int,
    batch: tuple[str, ...],
    single: Path | None,
    capture_timeout: float,
    capture_memory: str,
    out: Path,
) -> int:
    """Run FUNCTION of FILE.py once per rank on fake tensors, and write what it does.

    The file is executed, with your rights. Then: shardproof verify DIR_SINGLE DIR_PARALLEL.
    """
    from shardproof.cluster.settings import parse_size
    from shardproof.frontends.torch.capture import Limits
    from shardproof.frontends.torch.capture import capture as record
    from shardproof.inputs import traces
    from shardproof.torch.run import full_parameters

    given = dict(_batch(text) for text in batch)
    full = {} if single is None else full_parameters(traces.kept(single)[0])
    try:
        limits = Limits(capture_timeout, parse_size(capture_memory))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    found = record(_function(step), world_size, range(world_size), given, full, limits)
    traces.keep(found, out)
    events = sum(len(t.events) for t in found)
    click.echo(f"{world_size} ranks, {events} events, in {out}")
    return 0


def _batch(text: str) -> tuple[str, TensorSpec]:
    """A batch tensor from its text; raises a usage error that says how one is written."""
    from shardproof.frontends.torch.capture import is_dtype
    from shardproof.frontends.torch.stated import TensorSpec

    found = _BATCH.fullmatch(text)
    if found is None:
        raise click.UsageError(
            f"--batch {text}: expected NAME=SHAPE:DTYPE, such as tokens=16x8192:int64[0,32000)"
        )
    name, shape, dtype, low, high = found.groups()
    if not is_dtype(dtype):
        raise click.UsageError(f"--batch {text}: {dtype} is no element type of torch")
    bounds = (None, None) if low is None else (int(low), int(high))
    return name, TensorSpec(tuple(int(n) for n in shape.split("x")), dtype, *bounds)


def _function(step: str) -> Any:
    """The function that FILE.py:FUNCTION names; the file is executed."""
    import runpy
    import sys

    path, colon, name = step.rpartition(":")
    if not colon or not Path(path).is_file():
        raise click.UsageError(f"{step}: expected FILE.py:FUNCTION, and a file that is there")
    sys.path.insert(0, str(Path(path).resolve().parent))
    found = runpy.run_path(path).get(name)
    if not callable(found):
        raise click.UsageError(f"{path} has no function {name}")
    return found
