"""The run directory: everything that a verdict rests on, as tables.

``certificate.json`` names every other file with its SHA-256; ``plan/`` is the plan in the format of
`engine.plan_files.store`; `TABLES` are the rest, one Arrow file each.  Values that occur often
(lineages, terms, atoms, parts) are stored once and referred to by number; a tensor of a side is the
number of its lineage.  Reading checks every reference and every spelling, and gives back the same
values; whether they are right is not decided here (`checker`).

The certificate is written last: a folder without one holds no finished run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import Node, NodeTable, Reduction
from shardproof.engine.plan.assumption import Assumption, texts
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.records import proofs as proof_files
from shardproof.engine.records.certificate import (
    FORMAT,
    NAME,
    Certificate,
    ProofEntry,
    read_certificate,
    write_certificate,
)
from shardproof.engine.records.lineage_columns import LineageReader, LineageWriter
from shardproof.engine.records.payload import dump, load_definition
from shardproof.engine.specification.conclusions import Conclusion
from shardproof.engine.storage import files
from shardproof.engine.storage.files import unwritable
from shardproof.engine.storage.tables import Columns, decode, encode, read_file, write_file

SUFFIX = ".arrow"
PLAN = "plan"
#: The two sides of a plan, as tables call them.
SINGLE, PARALLEL = "single", "parallel"

#: The columns of every table; kinds are those of `engine.storage.tables.TYPES`.
TABLES: Mapping[str, Mapping[str, str]] = {
    "nodes": {"kind": "word", "payload": "text", "extents": "numbers", "coordinates": "words"},
    "tokens": {"kind": "word", "node": "ref", "position": "ref", "inner": "ref"},
    "atoms": {
        "axis": "ref",
        "stride": "number",
        "extent": "number",
        "start": "word",
        "size": "number",
    },
    "parts": {"token": "ref", "start": "word", "size": "number", "extent": "number"},
    "terms": {
        "factor": "word",
        "node": "ref",
        "dims": "refs",
        "atoms": "refs",
        "fixed": "refs",
        "parts": "refs",
        "places": "numbers",
    },
    "lineages": {"shape": "numbers", "terms": "refs"},
    "tensors": {"side": "word", "lineage": "ref"},
    "stages": {
        "side": "word",
        "row": "ref",
        "template": "ref",
        "live": "flag",
        "problem": "word",
        "opened": "refs",
    },
    "templates": {
        "number": "ref",
        "sha256": "text",
        "linear": "text",
        "nonlinear": "text",
        "side": "word",
        "row": "ref",
    },
    "conclusions": {
        "kind": "word",
        "name": "text",
        "ranks": "refs",
        "holds": "flag",
        "message": "text",
        "program": "ref",
        "value": "ref",
    },
}


class StageRecord(NamedTuple):
    """A row of the ``stages`` table: operator instance ``row`` of a side.  ``template``: -1 where
    nothing is to solve; ``live``: whether a conclusion depends on it; ``problem``: why no
    obligation could be stated ("" if one was, or none is needed); ``opened``: the nodes behind
    which the cut of its claim lies, where it is one of its own.

    Example: ``StageRecord("parallel", 38, 84, True)``: the first all-reduce of a GPT at tp 2 has
    template 84, and a conclusion depends on it.
    """

    side: str
    row: int
    template: int
    live: bool
    problem: str = ""
    opened: tuple[int, ...] = ()


class TemplateRecord(NamedTuple):
    """An obligation as text, on both rungs (``nonlinear`` is empty where the first is exact), and
    the side and row that it was stated for first.

    Example: ``TemplateRecord("(set-logic QF_UFLRA) ...", "", "parallel", 3)``.
    """

    linear: str
    nonlinear: str
    side: str
    row: int


class Run(NamedTuple):
    """A finished run as it is stored.  ``single``, ``parallel``: the lineage of each tensor of a
    side (None: of an operator that has no meaning here).

    Example: ``read_run("run").certificate.verdict`` is "proved", and ``.parallel[5]`` is the
    lineage of tensor 5 of the parallel side.
    """

    folder: Path
    plan: Plan
    nodes: NodeTable
    single: tuple[Lineage | None, ...]
    parallel: tuple[Lineage | None, ...]
    stages: tuple[StageRecord, ...]
    templates: tuple[TemplateRecord, ...]
    conclusions: tuple[Conclusion, ...]
    certificate: Certificate


def text_digest(linear: str, nonlinear: str) -> str:
    """What a template is known by: the SHA-256 of its texts, as verdicts are filed by.

    Example: of ``"(check-sat)"`` with a line's end, and ``""``, it is ``2d289e6b...``.
    """
    return hashlib.sha256(f"{linear}\0{nonlinear}".encode()).hexdigest()


def write_run(
    folder: str | Path,
    *,
    plan: Plan,
    nodes: NodeTable,
    single: Sequence[Lineage | None],
    parallel: Sequence[Lineage | None],
    stages: Sequence[StageRecord],
    templates: Sequence[TemplateRecord],
    conclusions: Sequence[Conclusion],
    verdict: str,
    inputs: Mapping[str, str] | None = None,
    assumptions: Sequence[Assumption] = (),
    reasons: Sequence[str] = (),
    counts: Mapping[str, int] | None = None,
    solvers: Mapping[str, str] | None = None,
    settings: Mapping[str, str | int | float | bool] | None = None,
    proofs: Sequence[tuple[ProofEntry, str]] = (),
    saved: str = "",
    written: Mapping[str, str] | None = None,
) -> Certificate:
    """Store a run in ``folder``, which may hold other files (a ledger); its certificate.

    Example: after ``verify --out run``, ``run/certificate.json``, ``run/stages.arrow`` and the
    other tables, and ``run/plan/``.

    ``inputs``: SHA-256 of the files that the plan was read from; ``reasons``: why the verdict is
    not "proved"; ``proofs``: of every template, if proofs are to be stored; ``saved``: the digest
    of ``plan`` if `engine.plan_files.store.save` has put it there already; ``written``: the digests
    of the tables if `write_tables` has.  Raises `InvalidInput` for what cannot be stored.
    """
    target = Path(folder)
    files = dict(
        write_tables(target, nodes, single, parallel, stages, templates, conclusions)
        if written is None
        else written
    )
    digest = saved or store.save(plan, target / PLAN)
    if proofs:
        encoded = proof_files.encode_proofs(proofs)
        files[proof_files.FILE] = write_file(target / proof_files.FILE, encoded)
    certificate = Certificate(
        verdict=verdict,
        plan=digest,
        inputs=dict(inputs or {}),
        files=files,
        assumptions=texts(assumptions),
        assumption_details=tuple(assumptions),
        reasons=tuple(reasons),
        conclusions=summary(conclusions),
        counts=dict(counts or {}),
        solvers=dict(solvers or {}),
        settings=dict(settings or {}),
        proofs=tuple(entry for entry, _ in proofs),
    )
    write_certificate(target, certificate)
    return certificate


def write_tables(
    folder: str | Path,
    nodes: NodeTable,
    single: Sequence[Lineage | None],
    parallel: Sequence[Lineage | None],
    stages: Sequence[StageRecord],
    templates: Sequence[TemplateRecord],
    conclusions: Sequence[Conclusion],
) -> dict[str, str]:
    """Store the tables of a run, without its certificate; their digests by the names of their
    files, such as ``stages.arrow``."""
    target = Path(folder)
    lineages = LineageWriter()
    sides = {SINGLE: [lineages(x) for x in single], PARALLEL: [lineages(x) for x in parallel]}
    tables: dict[str, Columns] = {
        **lineages.tables(),
        "nodes": _node_columns(nodes.nodes),
        "tokens": _columns("tokens", nodes.reductions),
        "tensors": {
            "side": [side for side, numbers in sides.items() for _ in numbers],
            "lineage": [number for numbers in sides.values() for number in numbers],
        },
        "stages": _columns("stages", stages),
        "templates": _columns(
            "templates",
            [(n, text_digest(t.linear, t.nonlinear), *t) for n, t in enumerate(templates)],
        ),
        "conclusions": _columns("conclusions", conclusions),
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / NAME).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(error, target) from error
    return {
        name + SUFFIX: write_file(
            target / (name + SUFFIX), encode(name, declared, tables[name], FORMAT)
        )
        for name, declared in TABLES.items()
    }


def summary(conclusions: Sequence[Conclusion]) -> dict[str, tuple[int, int]]:
    """For each kind of conclusion: how many hold, of how many.

    Example: of a loss and two gradients, of which one does not hold,
    ``{"gradient": (1, 2), "loss": (1, 1)}``.
    """
    result: dict[str, tuple[int, int]] = {}
    for conclusion in conclusions:
        holding, total = result.get(conclusion.kind, (0, 0))
        result[conclusion.kind] = (holding + conclusion.holds, total + 1)
    return dict(sorted(result.items()))


def _columns(table: str, rows: Sequence[tuple[Any, ...]]) -> Columns:
    names = list(TABLES[table])
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return dict(zip(names, cells, strict=True))


def _node_columns(nodes: Sequence[Node]) -> Columns:
    return {
        "kind": [n.kind for n in nodes],
        "payload": [dump(n.definition) for n in nodes],
        "extents": [n.extents for n in nodes],
        "coordinates": [tuple(sorted(n.coordinates)) for n in nodes],
    }


# -- reading -------------------------------------------------------------------------------------


def read_run(folder: str | Path) -> Run:
    """The run in ``folder``; raises `InvalidInput` naming the file and the row at fault.

    Example: of a folder in which ``stages.arrow`` was edited, "stages.arrow: was changed: it has
    another SHA-256 than in the certificate".
    """
    where = Path(folder)
    with files.bounded(where):
        return _run(where)


def _run(where: Path) -> Run:
    certificate = read_certificate(where)
    try:
        if set(certificate.files) - {proof_files.FILE} != {name + SUFFIX for name in TABLES}:
            raise InvalidInput("names other files than the tables of a run", NAME)
        tables = {name: _table(where, name, certificate) for name in TABLES}
    except InvalidInput as error:
        raise error.within(str(where)) from error
    plan = store.load(where / PLAN)
    try:
        if store.digest(plan) != certificate.plan:
            raise InvalidInput("is another plan than the certificate's", PLAN)
        nodes = _nodes(tables["nodes"], tables["tokens"])
        nodes.domains = plan.single.domains
        sides = _sides(tables, nodes)
        templates = _templates(tables["templates"])
        stages = _stages(tables["stages"], len(templates))
        conclusions = tuple(
            Conclusion(*row)
            for row in zip(*(tables["conclusions"][c] for c in TABLES["conclusions"]), strict=True)
        )
        if summary(conclusions) != certificate.conclusions:
            raise InvalidInput("says other conclusions than their table", NAME)
    except InvalidInput as error:
        raise error.within(str(where)) from error
    return Run(
        where,
        plan,
        nodes,
        sides[SINGLE],
        sides[PARALLEL],
        stages,
        templates,
        conclusions,
        certificate,
    )


def _table(where: Path, name: str, certificate: Certificate) -> dict[str, list[Any]]:
    data = read_file(where / (name + SUFFIX), certificate.files[name + SUFFIX])
    try:
        return decode(name, TABLES[name], data, FORMAT)
    except InvalidInput as error:
        raise error.within(name + SUFFIX) from error


def _nodes(columns: Mapping[str, list[Any]], tokens: Mapping[str, list[Any]]) -> NodeTable:
    table = NodeTable()
    for number, (kind, text, extents, coordinates) in enumerate(
        zip(*(columns[c] for c in TABLES["nodes"]), strict=True)
    ):
        where = f"nodes{SUFFIX}, row {number}"
        definition = load_definition(kind, text, where)
        if list(coordinates) != sorted(set(coordinates)):
            raise InvalidInput(f"coordinates {list(coordinates)} are not sorted", where)
        if (kind == "one") != (number == 0):
            raise InvalidInput("the constant 1 is node 0, and no other", where)
        if number and table.define(definition, extents, frozenset(coordinates)) != number:
            raise InvalidInput(f"defines {kind} {text[:60]} a second time", where)
        if table[number].extents != extents or table[number].coordinates != set(coordinates):
            raise InvalidInput("the constant 1 has no axes and no coordinates", where)
    if not columns["kind"]:
        raise InvalidInput("has no rows", f"nodes{SUFFIX}")
    for number, (kind, node, position, inner) in enumerate(
        zip(*(tokens[c] for c in TABLES["tokens"]), strict=True)
    ):
        reduction = Reduction(kind, node, position, inner)
        if not (kind in ("sum", "max", "via") and 0 <= node < len(table) and position >= 0) or not (
            0 <= inner < number if kind == "via" else inner == -1
        ):
            raise InvalidInput(f"{reduction} is no partial sum", f"tokens{SUFFIX}, row {number}")
        if table.reduction(reduction) != number:
            raise InvalidInput(f"repeats {reduction}", f"tokens{SUFFIX}, row {number}")
    return table


def _sides(
    tables: Mapping[str, Mapping[str, list[Any]]], nodes: NodeTable
) -> dict[str, tuple[Lineage | None, ...]]:
    reader = LineageReader(tables, len(nodes), len(nodes.reductions))
    sides: dict[str, list[Lineage | None]] = {SINGLE: [], PARALLEL: []}
    for row, (side, number) in enumerate(zip(*tables["tensors"].values(), strict=True)):
        where = f"tensors{SUFFIX}, row {row}"
        if side not in sides or (side == SINGLE and sides[PARALLEL]):
            raise InvalidInput(f"side {side!r} is out of place", where)
        sides[side].append(reader(number, where))
    reader.finish()
    return {side: tuple(lineages) for side, lineages in sides.items()}


def _templates(columns: Mapping[str, list[Any]]) -> tuple[TemplateRecord, ...]:
    result = []
    for row, (number, digest, linear, nonlinear, side, example) in enumerate(
        zip(*columns.values(), strict=True)
    ):
        where = f"templates{SUFFIX}, row {row}"
        if number != row:
            raise InvalidInput(f"is numbered {number}", where)
        if text_digest(linear, nonlinear) != digest:
            raise InvalidInput("the texts do not have the stored SHA-256", where)
        result.append(TemplateRecord(linear, nonlinear, side, example))
    return tuple(result)


def _stages(columns: Mapping[str, list[Any]], templates: int) -> tuple[StageRecord, ...]:
    result = []
    for row, cells in enumerate(zip(*columns.values(), strict=True)):
        stage = StageRecord(*cells)
        if stage.side not in (SINGLE, PARALLEL) or not -1 <= stage.template < templates:
            raise InvalidInput(
                f"side {stage.side!r}, template {stage.template} of {templates}",
                f"stages{SUFFIX}, row {row}",
            )
        result.append(stage)
    return tuple(result)
