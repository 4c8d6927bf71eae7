"""What `shardproof inspect` shows: plain data of a plan or a run, and the same as tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import texts
from shardproof.engine.plan.collectives import COMMUNICATION, TABLE, Wire
from shardproof.engine.plan.ir import Group, Op, Plan, Program
from shardproof.inputs import rundir
from shardproof.report.terminal import write as write_result
from shardproof.run.document import read_result
from shardproof.run.plain import plain
from shardproof.run.result import Result

#: Longer tables are cut on the screen; ``--json`` has all rows.
MOST_ROWS: Final = 40

Data = dict[str, Any]


def look(path: Path) -> Data:
    """What is in a plan or the directory of a run, as plain data; raises `InvalidInput`.

    Example: ``{"kind": "plan", "name": "gpt dp2 tp2", "ranks": 4, ...}`` of a folder with that
    plan.
    """
    if path.is_dir() and rundir.is_run(path):
        return run(path)
    return plan(plan_of(path))


def plan_of(path: Path) -> Plan:
    """The plan in a folder, a file that a frontend reads, or the directory of a run; raises
    `InvalidInput`.

    Example: of a run directory, the plan in its folder ``plan``.
    """
    from shardproof.engine.plan_files import store
    from shardproof.inputs.load import load_side

    if path.is_dir():
        return store.load(path / "plan" if rundir.is_run(path) else path)
    return load_side(path)


# -- a plan --------------------------------------------------------------------------------------


def plan(plan: Plan) -> Data:
    """The plan in numbers.  A side without calls is one that is not there: the file has another.

    Example: ``"communication": [{"name": "all_reduce", "members": 2, "issued": 248, ...}]`` of a
    GPT on dp 2, tp 2.
    """
    sides = {"single": [plan.single] if plan.single.calls else [], "parallel": plan.programs}
    return {
        "kind": "plan",
        "name": plan.name,
        "ranks": plan.ranks,
        "microbatches": plan.microbatches,
        "replica_axes": list(plan.replica_axes),
        "loss": plan.loss,
        "notes": [*plan.notes, *texts(plan.assumed)],
        "programs": [program(p, side) for side, programs in sides.items() for p in programs],
        "operators": _operators(sides),
        "parameters": _parameters(plan),
        "communication": _communication(plan.programs),
    }


def program(program: Program, side: str) -> Data:
    """One program; ``operators``: in its bodies, ``issued``: over its ranks and all its calls.

    Example: 192 ``operators`` in the bodies of that GPT's program are 1392 ``issued`` on four
    ranks.
    """
    sizes = [len(body.ops) for body in program.bodies]
    return {
        "side": side,
        "name": program.name,
        "ranks": program.ranks,
        "base": program.base,
        "axes": [{"name": n, "extent": e, "stride": s} for n, e, s in program.axes],
        "bodies": len(program.bodies),
        "calls": len(program.calls),
        "operators": sum(sizes),
        "issued": program.ranks * sum(sizes[call.body] for call in program.calls),
        "shards": len(program.shards),
    }


def _issued(program: Program) -> Iterable[tuple[Op, int]]:
    """Every operator, and how many times it runs over all ranks and calls."""
    calls = Counter(call.body for call in program.calls)
    for number, count in sorted(calls.items()):
        for op in program.bodies[number].ops:
            yield op, count * program.ranks


def _operators(sides: Mapping[str, Sequence[Program]]) -> list[Data]:
    counts: dict[tuple[str, bool], Counter[str]] = {}
    for side, programs in sides.items():
        for program in programs:
            for op, times in _issued(program):
                counts.setdefault((op.name, op.backward), Counter())[side] += times
    return [
        {"name": name, "backward": backward, **{side: counted[side] for side in sides}}
        for (name, backward), counted in sorted(counts.items())
    ]


def _parameters(plan: Plan) -> list[Data]:
    """By parameter or buffer: its parts and the ranks that hold one."""
    parameters: dict[str, Data] = {}
    for shard in plan.single.shards:
        parameters[shard.name] = _parameter(shard.name, shard.full_shape, shard.trainable)
    for p in plan.programs:
        for shard in p.shards:
            row = parameters.setdefault(
                shard.name, _parameter(shard.name, shard.full_shape, shard.trainable)
            )
            row["ranks"] += p.ranks
            part = list(shard.shape)
            if part not in row["parts"]:
                row["parts"].append(part)
    return list(parameters.values())


def _parameter(name: str, shape: tuple[int, ...], trainable: bool) -> Data:
    return {"name": name, "trainable": trainable, "shape": list(shape), "parts": [], "ranks": 0}


def _communication(programs: Iterable[Program]) -> list[Data]:
    """By kind of communication and by how many take part: how many times ranks issue it."""
    counts: Counter[tuple[str, int, int]] = Counter()
    elements: Counter[tuple[str, int, int]] = Counter()
    for program in programs:
        for number, count in sorted(Counter(call.body for call in program.calls).items()):
            body = program.bodies[number]
            for op in body.ops:
                if op.name in COMMUNICATION:
                    key = (op.name, *_members(op, program))
                    counts[key] += count * program.ranks
                    values = op.inputs if op.inputs else op.outputs
                    for value in values:
                        size = 1
                        for extent in body.values[value].shape:
                            size *= extent
                        elements[key] += size * count * program.ranks
    return [
        {
            "name": name,
            "members": members,
            "programs": programs_joined,
            "issued": counts[name, members, programs_joined],
            "elements": elements[name, members, programs_joined],
        }
        for name, members, programs_joined in sorted(counts)
    ]


def _members(op: Op, program: Program) -> tuple[int, int]:
    """How many ranks take part, and how many programs they run."""
    if TABLE[op.name].wire is not Wire.GROUP:
        return 2, 2
    group = op.attrs.get("group")
    if not isinstance(group, Group):
        return 1, 1
    programs = max(1, len(group.ranks))
    members = programs
    for axis in group.axes:
        members *= program.extents.get(axis, 1)
    return members, programs


# -- a run ---------------------------------------------------------------------------------------


def run(folder: Path) -> Data:
    """The run in numbers: its result if it has ended, its files, its verdicts.

    Example: ``"verdicts": {"verdicts": {"unsat": 114}, "solvers": {"z3": 114}, ...}``.
    """
    result = read_result(folder)
    return {
        "kind": "run",
        "run_dir": str(folder.resolve()),
        "result": None if result is None else result.to_dict(),
        "verdicts": _verdicts(folder),
        "files": [_file(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()],
    }


def _verdicts(folder: Path) -> Data:
    """Verdicts on record: how many of each, by whom, and how long they took."""
    path = folder / rundir.VERDICTS
    if not path.exists():
        return {}
    from shardproof.cluster.verdicts.ledger import LedgerError
    from shardproof.cluster.verdicts.ledger import read as read_ledger

    try:
        table = read_ledger(path)
    except (OSError, LedgerError) as error:
        raise InvalidInput(f"cannot be read: {error}", str(path)) from error
    rows = table.select(["verdict", "solver", "seconds", "cached"]).to_pylist()
    return {
        "verdicts": dict(sorted(Counter(row["verdict"] for row in rows).items())),
        "solvers": dict(sorted(Counter(row["solver"] for row in rows).items())),
        "cached": sum(row["cached"] for row in rows),
        "seconds": round(sum(row["seconds"] for row in rows), 6),
    }


def _file(folder: Path, path: Path) -> Data:
    """A file of the run; of an Arrow file also how many rows it has."""
    described: Data = {"name": str(path.relative_to(folder)), "bytes": path.stat().st_size}
    if path.suffix == ".arrow":
        import pyarrow as pa

        try:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                described["rows"] = sum(
                    reader.get_batch(i).num_rows for i in range(reader.num_record_batches)
                )
        except (pa.ArrowException, OSError) as error:
            raise InvalidInput(f"is no Arrow file: {error}", str(path)) from error
    return described


# -- tables --------------------------------------------------------------------------------------


def write(data: Data, to: Console) -> None:
    """What `look` found, as tables.

    Example: the tables "programs", "operators", "parameters and buffers" and "communication" of a
    plan.
    """
    (_write_plan if data["kind"] == "plan" else _write_run)(data, to)


def _write_plan(data: Data, to: Console) -> None:
    to.print(Text(f"plan {plain(data['name'])}", style="bold"))
    axes = ", ".join(data["replica_axes"]) or "nothing"
    facts = f"{data['ranks']:,} ranks, {data['microbatches']} microbatches for each replica along "
    to.print(Text(f"  {facts}{plain(axes)}, loss: {plain(data['loss'])}"))
    for note in data["notes"]:
        to.print(Text(f"  {plain(note)}"))
    _table(
        to,
        "programs",
        data["programs"],
        {
            "side": "side",
            "name": "program",
            "ranks": "ranks",
            "axes": "free along",
            "bodies": "bodies",
            "calls": "calls",
            "operators": "operators",
            "issued": "issued",
            "shards": "shards",
        },
    )
    named = [
        {**row, "name": f"backward of {row['name']}" if row["backward"] else row["name"]}
        for row in data["operators"]
    ]
    _table(
        to,
        "operators, over all ranks and microbatches",
        named,
        {"name": "operator", "single": "single-device", "parallel": "parallel"},
    )
    _table(
        to,
        "parameters and buffers",
        data["parameters"],
        {
            "name": "name",
            "trainable": "trainable",
            "shape": "shape",
            "parts": "parts",
            "ranks": "on ranks",
        },
    )
    _table(
        to,
        "communication",
        data["communication"],
        {
            "name": "kind",
            "members": "ranks joined",
            "programs": "programs joined",
            "issued": "issued",
            "elements": "elements",
        },
    )


def _write_run(data: Data, to: Console) -> None:
    if data["result"] is None:
        where = plain(data["run_dir"])
        to.print(Text(f"run {where}: has not ended, or was interrupted"), soft_wrap=True)
    else:
        write_result(Result.from_json(json.dumps(data["result"])), to)
    if data["verdicts"]:
        rows = [{"name": k, "value": v} for k, v in data["verdicts"].items()]
        _table(to, "verdicts on record", rows, {"name": "", "value": ""})
    rows = [{"rows": "", **row} for row in data["files"]]
    _table(to, "files", rows, {"name": "file", "rows": "rows", "bytes": "bytes"})


def _table(to: Console, title: str, rows: Sequence[Data], columns: Mapping[str, str]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for key, heading in columns.items():
        right = all(isinstance(row[key], int) for row in rows)
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(Text(plain(_cell(row[key]))) for key in columns))
    to.print()
    to.print(table)
    if len(rows) > MOST_ROWS:
        to.print(Text(f"... and {len(rows) - MOST_ROWS} more, all with --json"))


def _cell(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
        case [dict(), *_]:
            return ", ".join(f"{axis['name']} {axis['extent']}" for axis in value)
        case list():
            return " ".join(str(inner) for inner in value) if _nested(value) else str(value)
        case _:
            return str(value)


def _nested(value: list[Any]) -> bool:
    return any(isinstance(inner, list) for inner in value) or not value
