"""Drawn steps, judged and verified.

python -m benchmarks.torch.drawn.run FIRST LAST           # right ones
python -m benchmarks.torch.drawn.run FIRST LAST --wrong   # with one mistake each
python -m benchmarks.torch.drawn.run FIRST LAST --seconds 60   # for each; the rest is "late"

It exits with 1 where a step that differs is proved, or one that is equal is refuted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import asdict, fields
from typing import Any

import shardproof.torch as sp
from benchmarks.torch.drawn.draw import Drawn, draw
from benchmarks.torch.drawn.judge import differs
from benchmarks.torch.drawn.steps import batch, step
from benchmarks.torch.drawn.widened import widened

#: The axes of the mesh, as they are told.
_AXES = ("pp", "dp", "cp", "tp")


def world_size(drawn: Drawn) -> int:
    """How many ranks a step has."""
    return drawn.pp * drawn.dp * drawn.cp * drawn.tp


def told(drawn: Drawn) -> str:
    """What is drawn, without what is plain.

    Example: "dp2 tp2 heads=4 key_heads=2 norm=rms ...".
    """
    axes = " ".join(f"{a}{getattr(drawn, a)}" for a in _AXES if getattr(drawn, a) > 1)
    plain = {f.name: f.default for f in fields(drawn)}
    every = {k: v for k, v in asdict(drawn).items() if k not in ("seed", *_AXES)}
    rest = {k: v for k, v in every.items() if v and v != plain[k]}
    return axes + " " + " ".join(k if v is True else f"{k}={v}" for k, v in rest.items())


def verdict(drawn: Drawn) -> tuple[str, str]:
    """The verdict on a drawn step, and its first finding."""
    result = sp.verify(
        step(drawn, one=True),
        step(drawn, one=False),
        world_size=world_size(drawn),
        batch=batch(drawn),
    )
    return result.verdict, " ".join(sp.told(result).split())[:300]


def judged(drawn: Drawn) -> str:
    """What differs between both sides when they are run, or nothing."""
    size = world_size(drawn)
    sides = (step(drawn, one=True), step(drawn, one=False))
    return differs(*sides, size, batch(drawn), drawn.classes)


def _child(drawn: Drawn, pipe: Any) -> None:
    pipe.send(verdict(drawn))


def _bounded(drawn: Drawn, seconds: float) -> tuple[str, str]:
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=_child, args=(drawn, theirs))
    child.start()
    theirs.close()  # So that a child that ends without an answer is seen.
    try:
        answer = mine.recv() if mine.poll(seconds) else ("late", "")
    except EOFError:
        answer = "an exception", "printed above"
    child.kill()
    child.join()
    return answer  # type: ignore[no-any-return]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args(arguments)
    opposite = 0
    for seed in range(given.first, given.last + 1):
        drawn = (widened if given.wide else draw)(seed, wrong=given.wrong)
        try:
            difference = judged(drawn)
        except RuntimeError as error:
            print(f"{seed}: not judged: {str(error).strip().splitlines()[-1]}", flush=True)
            continue
        start = time.monotonic()
        said, why = _bounded(drawn, given.seconds)
        bad = said == ("proved" if difference else "refuted")
        opposite += bad
        label = "WRONG " if bad else ""
        print(
            f"{label}{seed}: {said} in {time.monotonic() - start:.0f} s;"
            f" {difference or 'equal'}; {told(drawn)}"
            + ("" if said == ("refuted" if difference else "proved") else f"\n    {why}"),
            flush=True,
        )
    return bool(opposite)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
