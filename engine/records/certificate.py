"""The certificate of a run: what was claimed, on what it rests, and what has to be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.storage.tables import read_file, write_file

FORMAT = "shardproof run 2"
NAME = "certificate.json"

Verdict: TypeAlias = Literal["proved", "refuted", "inconclusive"]

#: The setting that says how many positions beyond the fewest represent every piece of an axis.
SHAPES = "shapes"

#: The most of them that a run may have.
MOST_SHAPES = 8

#: What a verdict rests on besides the files that the certificate names.
TRUSTED = (
    "the declarations of operators, their roles and derivatives (engine.ops, engine.interpreters)",
    "the meaning of a program: unrolling and matching of messages (engine.schedule)",
    "the statement of obligations at small size (engine.obligations, engine.small_model)",
    "the statement of conclusions (engine.specification)",
    "the emission of SMT-LIB text and the solver that answers unsat (solvers)",
    "the checker, which compares all of these with the files (checker)",
)


class ProofEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of the proof of one template beside its first verdict.

    Example: ``ProofEntry(template=0, rung="linear", text="4bd8...", proof="ba78...", first="z3",
    solvers=("cvc5", "z3"))``: z3 answered first, and cvc5 gave a proof.

    ``rung``: which text of the template is proved; ``text``, ``proof``: their SHA-256 ("": there
    is no proof, for a ``reason``); ``first``: the solver whose verdict the run rests on;
    ``solvers``: all that said "unsat" by themselves.  A template with fewer than two of them is a
    single-solver case.
    """

    template: int
    rung: str
    text: str
    proof: str
    first: str
    solvers: tuple[str, ...]
    reason: str = ""


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``certificate.json`` of a run says: the verdict, and everything that it rests on.

    Example: ``{"verdict": "proved", "plan": "bf52...", "conclusions": {"gradient": [2, 2], "loss":
    [1, 1]}, ...}``.

    ``plan``: digest of the plan (`engine.plan_files.store.digest`); ``inputs``: SHA-256 of the
    files that it was read from; ``files``: of every table of the run; ``assumptions``: as printed,
    and ``assumption_details``: of what kind each is, about what, where (`engine.plan.assumption`);
    ``reasons``: why the verdict is not "proved"; ``conclusions``: by kind, how many hold of how
    many; ``solvers``: versions; ``proofs``: of every template, if the run stored proofs.
    """

    verdict: str
    plan: str
    inputs: dict[str, str]
    files: dict[str, str]
    assumptions: tuple[str, ...] = ()
    assumption_details: tuple[Assumption, ...] = ()
    reasons: tuple[str, ...] = ()
    conclusions: dict[str, tuple[int, int]] = {}
    counts: dict[str, int] = {}
    solvers: dict[str, str] = {}
    settings: dict[str, str | int | float | bool] = {}
    proofs: tuple[ProofEntry, ...] = ()
    trusted: tuple[str, ...] = TRUSTED
    format: str = FORMAT


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write the certificate of the run in ``folder``; raises `InvalidInput` if it is none, or
    cannot be written.

    Example: one with the verdict "maybe" is refused with "the verdict 'maybe' is none of a
    certificate".
    """
    if certificate.verdict not in get_args(Verdict):
        raise InvalidInput(f"the verdict {certificate.verdict!r} is none of a certificate", NAME)
    try:
        text = msgspec.json.encode(certificate)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidInput(f"cannot be stored: {error}", NAME) from error
    write_file(folder / NAME, msgspec.json.format(text, indent=2) + b"\n")


def read_certificate(folder: Path) -> Certificate:
    """The certificate of the run in ``folder``; raises `InvalidInput`.

    Example: of a folder in which a run was stopped, "certificate.json: is missing: this is no
    finished run".
    """
    try:
        if not folder.is_dir():
            raise InvalidInput("is no run directory")
        if not (folder / NAME).is_file():
            raise InvalidInput("is missing: this is no finished run", NAME)
        data = read_file(folder / NAME)
        try:
            certificate = msgspec.json.decode(data, type=Certificate)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"is no certificate: {error}", NAME) from error
        if certificate.format != FORMAT:
            raise InvalidInput(f"its format is {certificate.format!r}, expected {FORMAT!r}", NAME)
        if certificate.verdict not in get_args(Verdict):
            raise InvalidInput(f"its verdict is {certificate.verdict!r}", NAME)
        if certificate.trusted != TRUSTED:
            raise InvalidInput("names another trusted base than this version's", NAME)
    except InvalidInput as error:
        raise error.within(str(folder)) from error
    return certificate
