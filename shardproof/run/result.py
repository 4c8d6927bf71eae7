"""What a run found out: the result object, and its JSON document, which is a contract.

Later versions add fields and do not change these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from math import isfinite
from shlex import quote
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec

from shardproof.engine.findings import Difference, Finding
from shardproof.engine.plan.assumption import Assumption
from shardproof.run.plain import plain

Verdict: TypeAlias = Literal["proved", "refuted", "inconclusive", "invalid input"]

EXIT_CODES: Final[Mapping[Verdict, int]] = {
    "proved": 0,
    "refuted": 1,
    "inconclusive": 2,
    "invalid input": 3,
}

#: A verdict in a sentence, and its colour on a light and on a dark ground.
SAYS: Final[Mapping[Verdict, str]] = {
    "proved": "the parallel plan computes what the single-device plan computes, for every input",
    "refuted": "the parallel plan does not compute what the single-device plan computes",
    "inconclusive": "neither proved nor refuted",
    "invalid input": "nothing was verified",
}
_COLOURS: Final[Mapping[Verdict, str]] = {
    "proved": "#2e7d32",
    "refuted": "#c62828",
    "inconclusive": "#b26a00",
    "invalid input": "#c62828",
}

#: Findings that are told of in full where there is little room.
MOST_TOLD: Final = 5

#: Those of a conclusion, of which a large plan has thousands.
_CONCLUSION: Final = ("kind", "name", "ranks", "holds", "message")

#: The fields of a finding, in the order of the document.
_FINDING: Final = (
    "kind",
    "operator",
    "layer",
    "ranks",
    "microbatches",
    "source",
    "expected",
    "actual",
    "message",
    "repair",
    "cause",
    "group",
    "reference",
    "layers",
    "agreeing_ranks",
    "agreeing_microbatches",
)


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there was, and how much of it was distinct.

    Example: ``Counts(single_operators=132, parallel_operators=1392, ranks=4, stages=539,
    obligations=462, templates=114)``.

    ``parallel_operators``: over all ranks and microbatches.  ``cached``: templates whose verdict
    an earlier run had found.
    """

    single_operators: int = 0
    parallel_operators: int = 0
    ranks: int = 0
    stages: int = 0
    obligations: int = 0
    templates: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall-clock time by phase.

    Example: ``Seconds(load=1.2, partition=0.64, solve=0.01, compose=1.35, total=3.56)``.
    """

    load: float = 0.0
    partition: float = 0.0
    solve: float = 0.0
    compose: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One thing that the single-device plan says must hold of the parallel one: the loss, or the
    gradient of a parameter, on ``ranks``.

    Example: ``Conclusion("gradient", "wte.weight", (0, 1, 2, 3), False, "rank 0: the gradient of
    wte.weight is not ...")``.
    """

    kind: str
    name: str
    ranks: tuple[int, ...] = ()
    holds: bool = True
    message: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run.

    Example: ``Result("proved", Counts(ranks=4), mesh="dp 2 x tp 2")``; its ``exit_code`` is 0.

    ``reason`` says why a verdict is inconclusive, or what is wrong with the input.
    ``assumption_details``: the same, one by one, for machines.
    ``mesh``: the axes along which ranks lie, ``dp 2 x tp 4``; empty if they are not known.
    ``kept_whole``: axes to which no reduction of sizes was applied, and why.
    ``peak_rss_mib``: this process and its children together.  ``run_dir`` is empty if the run
    ended before it had one.
    """

    verdict: Verdict
    counts: Counts = Counts()
    seconds: Seconds = Seconds()
    peak_rss_mib: float = 0.0
    assumptions: tuple[str, ...] = ()
    assumption_details: tuple[Assumption, ...] = ()
    kept_whole: tuple[str, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    run_dir: str = ""
    mesh: str = ""

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        return EXIT_CODES[self.verdict]

    def __repr__(self) -> str:
        where = f", {self.run_dir}" if self.run_dir else ""
        return f"<Result: {self.verdict}, {self.counts.ranks} ranks{where}>"

    def __str__(self) -> str:
        return "\n".join(plain(f"{name}: {text}") for name, text in self.summary_rows())

    def _repr_html_(self) -> str:
        """The same as a table, for a notebook."""
        (verdict, reason), *rest = self.summary_rows()
        cells = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(text)}</td></tr>"
            for name, text in rest
        )
        colour = _COLOURS[self.verdict]
        head = f"<b style='color:{colour}'>{escape(verdict)}</b>: {escape(reason)}"
        return f"<div>{head}<table>{cells}</table></div>"

    def summary_rows(self) -> list[tuple[str, str]]:
        """The result in a few lines, each with a name; the first is the verdict."""
        holding = sum(c.holds for c in self.conclusions)
        rows: list[tuple[str, str]] = [(self.verdict, self.reason or SAYS[self.verdict])]
        for finding in self.findings[:MOST_TOLD]:
            rows.append((finding.kind, finding.message))
            rows += [(n, t) for n, t in (("cause", finding.cause), ("repair", finding.repair)) if t]
        if len(self.findings) > MOST_TOLD:
            rows.append(("more", f"{len(self.findings) - MOST_TOLD} more in `findings`"))
        if self.conclusions:
            rows.append(("conclusions", f"{holding} of {len(self.conclusions)} hold"))
        if self.run_dir:
            rows += [("run", self.run_dir), ("page", f"shardproof report {quote(self.run_dir)}")]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The document as plain data, keys in their order."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "counts": asdict(self.counts),
            "seconds": {name: round(value, 6) for name, value in asdict(self.seconds).items()},
            "peak_rss_mib": round(self.peak_rss_mib, 3),
            "assumptions": list(self.assumptions),
            "assumption_details": [asdict(a) for a in self.assumption_details],
            "kept_whole": list(self.kept_whole),
            "conclusions": [
                _listed({name: getattr(c, name) for name in _CONCLUSION}) for c in self.conclusions
            ],
            "findings": [_finding(f) for f in self.findings],
            "run_dir": self.run_dir,
            "mesh": self.mesh,
        }

    def to_json(self) -> str:
        """The document: one JSON object, ASCII only, without a newline at its end."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The result that `to_json` wrote; raises ``ValueError`` for anything else."""
        try:
            data = json.loads(text)
            result = cls(
                verdict=data["verdict"],
                reason=data["reason"],
                counts=Counts(**data["counts"]),
                seconds=Seconds(**data["seconds"]),
                peak_rss_mib=data["peak_rss_mib"],
                assumptions=tuple(data["assumptions"]),
                assumption_details=tuple(
                    Assumption(**a) for a in data.get("assumption_details", ())
                ),
                kept_whole=tuple(data.get("kept_whole", ())),  # earlier versions did not say
                conclusions=tuple(Conclusion(**_tupled(c)) for c in data["conclusions"]),
                findings=tuple(_read_finding(f) for f in data["findings"]),
                run_dir=data["run_dir"],
                mesh=str(data.get("mesh", "")),
            )
            return msgspec.convert(msgspec.to_builtins(result), cls)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"is no result: {error!r}") from error
        except msgspec.MsgspecError as error:
            raise ValueError(f"is no result: {error}") from error


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding as plain data; a number that JSON does not have is its name."""
    fields = _listed({name: getattr(finding, name) for name in _FINDING})
    fields["counterexample"] = [
        {
            "ranks": list(difference.ranks),
            "index": list(difference.index),
            "expected": _number(difference.expected),
            "actual": _number(difference.actual),
            "tensor": difference.tensor,
            "shard": difference.shard,
            "microbatch": difference.microbatch,
            "near": [[[_number(e), _number(a)] for e, a in row] for row in difference.near],
        }
        for difference in finding.counterexample
    ]
    return fields


def _number(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _read_finding(fields: Mapping[str, Any]) -> Finding:
    """The finding that `_finding` gave; documents of earlier versions have fewer fields."""
    differences = tuple(
        Difference(
            tuple(d["ranks"]),
            tuple(d["index"]),
            float(d["expected"]),
            float(d["actual"]),
            d.get("tensor", ""),
            d.get("shard", ""),
            d.get("microbatch", -1),
            tuple(tuple((float(e), float(a)) for e, a in row) for row in d.get("near", ())),
        )
        for d in fields.get("counterexample", ())
    )
    rest = {name: value for name, value in fields.items() if name != "counterexample"}
    return Finding(**_tupled(rest), counterexample=differences)


def _listed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def _tupled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
