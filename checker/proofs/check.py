"""Stored proofs: each is of its template's text, follows by its rules, and no solver's word alone.

Three eyes look at every proof: the rules themselves (`checker.proofs.cpc`), ethos where it is
installed, and each solver that the certificate names, asked again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

from shardproof.checker.proofs.cpc import check_proof
from shardproof.checker.proofs.ethos import Ethos
from shardproof.checker.proofs.terms import NotCovered, Rejected
from shardproof.checker.result import Problems
from shardproof.checker.solving import Solver, Texts
from shardproof.engine.records.certificate import ProofEntry
from shardproof.engine.records.proofs import digest, read_proofs
from shardproof.engine.records.run import Run
from shardproof.solvers import Mode
from shardproof.solvers.answers import SolverName

#: Makes a solver of one mode: "z3" or "cvc5" alone.
Alone = Callable[[Mode], Solver]


@dataclass
class Proofs:
    """What the proofs of a run show. ``counts``: templates with a proof, their bytes and steps,
    proofs that the built-in checker and ethos accepted, templates that one solver alone proves;
    ``notes``: what was not looked at, and why.

    Example: where 152 templates have proofs and all are followed, ``counts["proofs"]`` and
    ``counts["proofs_followed"]`` are 152.
    """

    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def check_proofs(
    run: Run,
    needed: Sequence[int],
    ethos: tuple[Ethos | None, str],
    alone: Alone,
    problems: Problems,
) -> Proofs:
    """Look at the proofs of a run.  ``needed``: the templates that its verdict rests on.  Raises
    `engine.errors.InvalidInput` if the file of proofs cannot be read.

    Example: a proof whose last step does not say ``false`` is a problem of the kind "proof" with
    its template's number.
    """
    proofs = Proofs()
    entries = _entries(run, needed, problems)
    texts = read_proofs(run.folder, run.certificate)
    if not entries:
        return proofs
    single = sum(len(e.solvers) == 1 for e in entries.values())
    proofs.counts = dict.fromkeys(
        ("proofs", "proof_bytes", "proof_steps", "proofs_followed", "proofs_by_ethos"), 0
    )
    proofs.counts["single_solver"] = single
    uncovered: dict[str, list[int]] = {}
    for number, entry in sorted(entries.items()):
        text, proof = _text(run, entry), texts.get(number, "")
        if not proof:
            proofs.notes.append(
                f"template {number} has no proof: {entry.reason or 'no reason is given'}"
            )
            continue
        proofs.counts["proofs"] += 1
        proofs.counts["proof_bytes"] += len(proof.encode())
        _follow(number, text, proof, proofs, uncovered, problems)
        if ethos[0] is not None and (wrong := ethos[0].check(text, proof)):
            problems.add("proof", f"template {number}: {wrong}")
        proofs.counts["proofs_by_ethos"] += ethos[0] is not None and not wrong
    for what, numbers in sorted(uncovered.items()):
        proofs.notes.append(f"{_named(numbers)}: not followed step by step: {what}")
    if ethos[1]:
        proofs.notes.append(ethos[1])
    _ask_each(run, entries, alone, proofs, problems)
    return proofs


def _entries(run: Run, needed: Sequence[int], problems: Problems) -> dict[int, ProofEntry]:
    """The entries of the certificate that are about the run's own texts, by template."""
    entries: dict[int, ProofEntry] = {}
    if not run.certificate.proofs:
        problems.add("proof", "the run has no stored proofs: it was made without --proofs")
        return entries
    for entry in run.certificate.proofs:
        number = entry.template
        if not 0 <= number < len(run.templates) or number in entries:
            problems.add(
                "proof", f"an entry about template {number}, which is not there or had one"
            )
        elif not set(entry.solvers) <= set(get_args(SolverName)):
            problems.add("proof", f"template {number} is proved by {', '.join(entry.solvers)}")
        elif entry.first and entry.first not in get_args(SolverName):
            problems.add("proof", f"template {number} was first proved by {entry.first}")
        elif entry.proof and entry.reason:
            problems.add("proof", f"template {number} has a proof, and a reason why it has none")
        elif digest(_text(run, entry)) != entry.text:
            problems.add("proof", f"the proof of template {number} is of another text")
        else:
            entries[number] = entry
    for number in sorted(set(needed) - entries.keys()):
        problems.add("proof", f"template {number} has no entry about its proof")
    return entries


def _text(run: Run, entry: ProofEntry) -> str:
    """The text of a template that an entry is about."""
    template = run.templates[entry.template]
    return {"linear": template.linear, "nonlinear": template.nonlinear}.get(entry.rung, "")


def _follow(
    number: int,
    text: str,
    proof: str,
    proofs: Proofs,
    uncovered: dict[str, list[int]],
    problems: Problems,
) -> None:
    """Follow a proof step by step."""
    try:
        checked = check_proof(text, proof)
    except Rejected as error:
        problems.add("proof", f"the proof of template {number} does not hold: {error}")
    except NotCovered as error:
        uncovered.setdefault(str(error), []).append(number)
    else:
        proofs.counts["proofs_followed"] += 1
        proofs.counts["proof_steps"] += checked.steps


def _named(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:5]))
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return f"template {some}{more}"


def _ask_each(
    run: Run,
    entries: Mapping[int, ProofEntry],
    alone: Alone,
    proofs: Proofs,
    problems: Problems,
) -> None:
    """Every solver that an entry names must say "unsat" again, by itself."""
    count = 0
    for name in get_args(SolverName):
        solver = alone(cast("Mode", name))
        texts = {n: _texts(run, n) for n, entry in sorted(entries.items()) if name in entry.solvers}
        solver.solve(texts.values())
        count += len(texts)
        for number, both in texts.items():
            if not solver.unsat(both):
                verdict = solver.verdicts[both]
                problems.add(
                    "proof",
                    f"template {number}: the certificate says that {name} proves it, "
                    f"{name} says {verdict}",
                )
    proofs.counts["asked_alone"] = count
    for number, entry in sorted(entries.items()):
        if len(entry.solvers) == 1:
            proofs.notes.append(f"template {number} is proved by {entry.solvers[0]} alone")


def _texts(run: Run, number: int) -> Texts:
    return run.templates[number].linear, run.templates[number].nonlinear
