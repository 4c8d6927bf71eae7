"""Labels that do not count: integers may be the mark that a program asks for, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.frontends.graphs.replayed import from_bytes
from shardproof.frontends.hlo import inline, replay, text
from shardproof.frontends.hlo.marks import marked

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"
COUNT = ADD.replace("add", "count", 1).replace("f32", "s32")
#: The mean of the losses of all labels that count, of N on each device; each may be read elsewhere.
BODY = """ENTRY main {
  p = f32[N] parameter(0)
  y = s32[N] parameter(1)
  m = s32[] constant(MARK)
  w = s32[N] broadcast(m), dimensions={}
  on = pred[N] compare(y, w), direction=HOW
  z = f32[] constant(0)
  o = f32[N] broadcast(z), dimensions={}
  s = f32[N] select(on, p, o)
  t = f32[] reduce(s, z), dimensions={0}, to_apply=add
  k = s32[] constant(0)
  i = s32[N] convert(on)
  n = s32[] reduce(i, k), dimensions={0}, to_apply=count
  c = f32[] convert(n)
REST}
"""
ASKED = {"y >= 0": ("0", "GE"), "y != -1": ("-1", "NE"), "y != -100": ("-100", "NE")}
ALONE = "  ROOT r = f32[] divide(t, c)\n"
GROUPS = "replica_groups={{0,1}}, to_apply=add"
RIGHT = f"""  u = f32[] all-reduce(t), {GROUPS}
  d = f32[] all-reduce(c), {GROUPS}
  ROOT r = f32[] divide(u, d)
"""
#: The mean of the means of the devices: the same only if as many labels count on each.
MEANS = f"""  q = f32[] divide(t, c)
  u = f32[] all-reduce(q), {GROUPS}
  h = f32[] constant(0.5)
  ROOT r = f32[] multiply(u, h)
"""


def program(asked: str, count: int, rest: str, ranks: int = 1) -> str:
    mark, how = ASKED[asked]
    body = BODY.replace("N]", f"{count}]").replace("MARK", mark).replace("HOW", how)
    head = f"HloModule m, replica_count={ranks}, num_partitions=1\n\n"
    return head + ADD + COUNT + body.replace("REST", rest)


def verdict(asked: str, rest: str, folder: Path) -> shardproof.Result:
    files = written(asked, rest, folder)
    return shardproof.verify(*files, out=folder / "run", cache_dir=folder / "cache")


def written(asked: str, rest: str, folder: Path) -> tuple[Path, Path]:
    single, parallel = folder / "single.hlo", folder / "parallel.hlo"
    single.write_text(program(asked, 8, ALONE))
    parallel.write_text(program(asked, 4, rest, 2))
    return single, parallel


@pytest.mark.parametrize("asked", ASKED)
def test_a_mean_over_all_labels_that_count_is_proved(asked: str, tmp_path: Path) -> None:
    result = verdict(asked, RIGHT, tmp_path)
    assert result.verdict == "proved", result.reason
    mark = f"-1 of y stands for {ASKED[asked][0]}"
    assert any(mark in a for a in result.assumptions) == (asked == "y != -100")


@pytest.mark.parametrize("asked", ASKED)
def test_the_mean_of_the_means_of_devices_is_refuted(asked: str, tmp_path: Path) -> None:
    result = verdict(asked, MEANS, tmp_path)
    assert result.verdict == "refuted", result.reason


@pytest.mark.parametrize("rest", [RIGHT, MEANS])
def test_labels_are_replayed_with_their_mark(rest: str, tmp_path: Path) -> None:
    files = written("y != -100", rest, tmp_path)
    replayed = from_bytes(replay.pair(*map(str, files), ""))
    assert replayed.replayed, replayed
    assert replayed.agrees, replayed


@pytest.mark.parametrize(
    ("lines", "mark"),
    [
        # Indices count from the end, as every lookup of JAX lets them: nothing is asked of labels.
        (("p = pred[4] compare(y, z), direction=LT", "ROOT r = s32[4] select(p, j, y)"), None),
        (("p = pred[4] compare(y, z), direction=LT", "ROOT r = s32[4] select(p, z, y)"), -1),
        (("p = pred[4] compare(z, y), direction=GT", "ROOT r = s32[4] convert(p)"), -1),
        (("p = pred[4] compare(y, z), direction=GT", "ROOT r = s32[4] convert(p)"), None),
        (("p = pred[4] compare(y, h), direction=EQ", "ROOT r = s32[4] convert(p)"), -100),
    ],
)
def test_what_a_program_asks_of_its_labels(lines: tuple[str, str], mark: int | None) -> None:
    body = "\n  ".join(
        (
            "y = s32[4] parameter(0)",
            "z = s32[4] constant({0, 0, 0, 0})",
            "h = s32[4] constant({-100, -100, -100, -100})",
            "n = s32[4] constant({9, 9, 9, 9})",
            "j = s32[4] add(y, n)",
            *lines,
        )
    )
    graph = marked(inline.graph(text.parse(f"HloModule m\n\nENTRY e {{\n  {body}\n}}\n")))
    assert graph.inputs[0].mark == mark
