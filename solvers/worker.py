"""The child process that holds one solver: ``python solvers/worker.py '<settings as JSON>'``.

Reads :class:`Question` messages from standard input and writes one :class:`Reply` for each to
what was its standard output; the first reply, unasked, carries the solver's version once it is
warm. Messages are MessagePack behind a length of four bytes, little endian.
Run by path, it imports nothing of ours but itself and `engine.system.portable`, by its path too, so
that it is warm soon.

The child bounds its own address space, and dies when its parent does: the parent holds the other
end of the ``lifeline`` pipe, whose closing raises SIGIO here, even within a solver's code.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

if TYPE_CHECKING:
    import z3
if TYPE_CHECKING or __name__ != "__main__":
    from shardproof.engine.system import portable
else:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine" / "system"))
    import portable

    del sys.path[0]

LENGTH = Struct("<I")
STACK_BYTES = 96 << 20
MIB = 1 << 20
VERDICTS = ("unsat", "sat", "unknown", "timeout", "memory")
#: How many times larger Z3 lets a sum become that is multiplied out.
MOST_BLOWUP = 1_000_000
OUT_OF_MEMORY = ("bad_alloc", "out of memory", "memoryerror", "cannot allocate")

_SYMBOLS = re.compile(r"^\(declare-fun (\|[^|]*\||\S+) \(\) Real\)$", re.MULTILINE)
_LOGIC = re.compile(r"\A\(set-logic (\w+)\)$", re.MULTILINE)
#: A function that a text declares.
_FUNCTION = re.compile(r"^\(declare-fun (?:\|[^|]*\||\S+) \(Real", re.MULTILINE)


class Settings(msgspec.Struct, frozen=True):
    """What a child is started with: bytes of address space, options of the solver as in
    :mod:`solvers.configurations`.

    Example: ``{"solver": "z3", "seed": 1, "memory_limit_bytes": 2147483648, "lifeline": 5}``, the
    argument of the child.
    """

    solver: str
    seed: int
    memory_limit_bytes: int
    lifeline: int
    options: dict[str, str] = {}


class Question(msgspec.Struct, frozen=True):
    """An SMT-LIB text; ``resource_limit`` is in the solver's own units, 0 for none.

    Example: ``Question("(set-logic QF_UFLRA)...(check-sat)", 120000000, True)``: 30 seconds of Z3.
    """

    text: str
    resource_limit: int
    want_model: bool
    want_proof: bool = False


class Reply(msgspec.Struct, frozen=True):
    """A verdict as in :class:`solvers.answers.Answer`, with the names of the model as spelled.

    Example: ``Reply("sat", "1.4.2", 0.04, ..., model={"x": "1"})``; the first one says "ready".

    ``rss_bytes`` is what the child keeps, ``peak_bytes`` what it held at most for this question.
    """

    verdict: str
    version: str
    seconds: float
    rss_bytes: int
    peak_bytes: int
    model: dict[str, str] = {}
    reason: str = ""
    proof: str = ""


class Outcome(NamedTuple):
    """What a solver makes of a question.

    Example: ``Outcome("sat", {"x": "1/3"})`` for a text that asserts that x is a third.
    """

    verdict: str
    model: Mapping[str, str] = MappingProxyType({})
    reason: str = ""
    proof: str = ""


def z3_backend(settings: Settings) -> tuple[str, Callable[[Question], Outcome]]:
    """Z3's version and how to ask it. Raises ImportError without Z3.

    Example: the version "5.4.0", and a function that gives ``Outcome("sat", {"x": "1"})`` for a
    text that asserts that x is 1.
    """
    import z3

    z3.set_param("smt.random_seed", settings.seed)
    z3.set_param("sat.random_seed", settings.seed)
    z3.set_param("nlsat.seed", settings.seed)

    def ask(question: Question) -> Outcome:
        try:
            return decide(question)
        except z3.Z3Exception as error:
            cause = error.args[0] if error.args else error
            message = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
            kind = MemoryError if "out of memory" in message else RuntimeError
            raise kind(message.strip()) from error

    def tactic(text: str) -> z3.Tactic:
        """A tactic with its parameters, as ``simplify,som=true``."""
        name, *rest = text.split(",")
        pairs = (entry.split("=") for entry in rest)
        given = {key: True if value == "true" else int(value) for key, value in pairs}
        return z3.With(name, **given)

    def decide(question: Question) -> Outcome:
        functions = _FUNCTION.search(question.text) is not None
        kind = "tactics for functions" if functions else "tactics"
        tactics = settings.options.get(kind, "").split()
        if tactics[:1] == ["multiply"]:
            if (outcome := multiplied_out(question.text)).verdict == "unsat":
                return outcome
            del tactics[0]
        if tactics:
            solver = z3.Then(*map(tactic, tactics)).solver()
        else:
            solver = z3.SolverFor(_logic(question.text))
            solver.set("random_seed", settings.seed)
        solver.set("rlimit", question.resource_limit)
        solver.from_string(question.text)
        verdict = str(solver.check())
        if verdict == "unknown":
            return _undecided(solver.reason_unknown(), question)
        model = {}
        if verdict == "sat" and question.want_model:
            assignment = solver.model()
            for spelled in _SYMBOLS.findall(question.text):
                value = assignment.eval(z3.Real(spelled.strip("|")), model_completion=True)
                rational = z3.is_rational_value(value)
                model[spelled] = str(value.as_fraction() if rational else value)
        return Outcome(verdict, model)

    z3.SolverFor("QF_UFLRA").check()
    return z3.get_version_string(), ask


def multiplied_out(text: str) -> Outcome:
    """Whether Z3 rewrites every goal of a text, one by one, to 0 = 0 by multiplying out: "unsat",
    else "unknown".  Sums that both sides of a goal have are letters first: what is equal whatever
    they are is equal.  Where that is not enough, all is multiplied out.

    Example: (x + y) z = z x + z y is; so is f((x + y + 16) / 16) z = z f((x + y) / 16 + 1).
    """
    import z3

    solver = z3.Solver()
    solver.from_string(text)
    denied = solver.assertions()[-1]
    claim = denied.arg(0) if z3.is_not(denied) else denied
    goals = claim.children() if z3.is_and(claim) else [claim]
    if claim is denied or not all(z3.is_eq(goal) and z3.is_real(goal.arg(0)) for goal in goals):
        return Outcome("unknown", reason="the text does not end with goals that are equalities")
    for place, goal in enumerate(goals):
        left, right = goal.children()
        numbers = {x.get_id() for x in _below(right)}
        shared = [x for x in _below(left) if z3.is_add(x) and x.get_id() in numbers]
        letters = [(x, z3.FreshReal()) for x in shared]
        if not (_is_zero(z3.substitute(left - right, *letters)) or _is_zero(left - right)):
            return Outcome("unknown", reason=f"goal {place} is not 0 = 0 when it is multiplied out")
    return Outcome("unsat")


def _is_zero(term: z3.ArithRef) -> bool:
    """Whether Z3 multiplies a term out to 0.  Applications of a function are letters, one for all
    whose arguments have a difference of 0: Z3 writes equal sums in orders of their own."""
    import z3

    letters: list[tuple[z3.ExprRef, z3.ArithRef]] = []
    known: list[tuple[z3.FuncDeclRef, list[z3.ExprRef], z3.ArithRef]] = []
    for x in _below(term):
        if x.decl().kind() != z3.Z3_OP_UNINTERPRETED or not x.num_args():
            continue
        given = [z3.substitute(a, *letters) for a in x.children()]
        letter = next(
            (
                letter
                for function, other, letter in known
                if function.eq(x.decl()) and all(map(_cancel, given, other))
            ),
            None,
        )
        if letter is None:
            letter = z3.FreshReal()
            known.append((x.decl(), given, letter))
        letters.append((x, letter))
    return _cancel(z3.substitute(term, *letters), z3.RealVal(0))


def _cancel(one: z3.ArithRef, other: z3.ArithRef) -> bool:
    """Whether the difference of two terms without functions is 0, multiplied out."""
    import z3

    value = z3.simplify(one - other, som=True, som_blowup=MOST_BLOWUP)
    return bool(z3.is_rational_value(value) and value.as_fraction() == 0)


def _below(term: z3.ExprRef) -> list[z3.ExprRef]:
    """All terms that a term is made of, operands first, the term itself last."""
    order: list[z3.ExprRef] = []
    seen: set[int] = set()
    stack = [(term, False)]
    while stack:
        x, ready = stack.pop()
        if ready:
            order.append(x)
        elif x.get_id() not in seen:
            seen.add(x.get_id())
            stack.append((x, True))
            stack += [(a, False) for a in x.children()]
    return order


def cvc5_backend(settings: Settings) -> tuple[str, Callable[[Question], Outcome]]:
    """cvc5's version and how to ask it. Raises ImportError without cvc5.

    Example: the version "1.4.2", and a function that for a text without a model gives "unsat", with
    a proof in CPC where one is wanted.
    """
    import cvc5

    def ask(question: Question) -> Outcome:
        solver = cvc5.Solver(cvc5.TermManager())
        solver.setOption("seed", str(settings.seed))
        solver.setOption("sat-random-seed", str(settings.seed))
        solver.setOption("produce-models", "true" if question.want_model else "false")
        solver.setOption("rlimit-per", str(question.resource_limit))
        for option, value in settings.options.items():
            solver.setOption(option, value)
        if question.want_proof:
            solver.setOption("produce-proofs", "true")
            solver.setOption("proof-granularity", "dsl-rewrite")
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, question.text, "obligation")
        symbols = parser.getSymbolManager()
        verdict = ""
        while True:
            command = parser.nextCommand()
            if command.isNull():
                break
            output = command.invoke(solver, symbols).strip()
            if output.startswith("(error"):
                raise RuntimeError(output)
            verdict = output.split(" ", 1)[0] or verdict  # "unknown (RESOURCEOUT)"
        if verdict == "unknown":
            return _undecided(solver.getInfo("reason-unknown").decode(), question)
        model = {}
        if verdict == "sat" and question.want_model:
            for term in symbols.getDeclaredTerms():
                if term.getSort().isReal():
                    value = solver.getValue(term)
                    exact = value.isRealValue()
                    model[str(term)] = str(Fraction(value.getRealValue()) if exact else value)
        proof = ""
        if verdict == "unsat" and question.want_proof:
            output = solver.proofToString(solver.getProof()[0], cvc5.ProofFormat.CPC)
            proof = output.decode() if isinstance(output, bytes) else output
        return Outcome(verdict, model, proof=proof)

    ask(Question("(set-logic QF_UFLRA)\n(check-sat)\n", 0, False))
    return cvc5.__version__, ask


BACKENDS = {"z3": z3_backend, "cvc5": cvc5_backend}


def _logic(text: str) -> str:
    match = _LOGIC.match(text)
    if match is None:
        raise RuntimeError("the text does not begin with (set-logic ...)")
    return match[1]


def _undecided(reason: str, question: Question) -> Outcome:
    """Whether a solver that did not decide ran into a limit, and which."""
    lowered = reason.lower()
    if "memout" in lowered or "memory" in lowered:
        return Outcome("memory", reason=reason)
    if "resource" in lowered:
        reached = f"resource limit {question.resource_limit} reached ({reason})"
        return Outcome("timeout", reason=reached)
    if "timeout" in lowered or "canceled" in lowered:
        return Outcome("timeout", reason=reason)
    return Outcome("unknown", reason=reason)


def answer(ask: Callable[[Question], Outcome], version: str, question: Question) -> Reply:
    """Ask the solver and turn what it says, errors included, into a reply.

    Example: a text with two ``(check-sat)`` is "crashed": "the text does not hold exactly one
    (check-sat) on its own line".

    An error of the solver, as about a text that it cannot read, is a crash of that one query: the
    next one meets a fresh solver object. Any other exception ends the child, which says the same.
    """
    portable.reset_peak()
    start = time.perf_counter()
    try:
        _logic(question.text)
        if question.text.count("\n(check-sat)") != 1:
            raise RuntimeError("the text does not hold exactly one (check-sat) on its own line")
        outcome = ask(question)
        if outcome.verdict not in VERDICTS:
            raise RuntimeError(f"not a verdict: {outcome.verdict!r}")
    except MemoryError as error:
        outcome = Outcome("memory", reason=f"out of memory: {error}")
    except RuntimeError as error:
        short = any(sign in str(error).lower() for sign in OUT_OF_MEMORY)
        outcome = Outcome("memory" if short else "crashed", reason=f"solver error: {error}")
    seconds = time.perf_counter() - start
    rss, peak = portable.resident_bytes()
    return Reply(
        outcome.verdict,
        version,
        seconds,
        rss,
        peak,
        dict(outcome.model),
        outcome.reason,
        outcome.proof,
    )


def serve(settings: Settings, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer questions until the source ends.

    Example: "ready", and then for each question one reply, until the parent closes the pipe.
    """

    def send(reply: Reply) -> None:
        body = msgspec.msgpack.encode(reply)
        sink.write(LENGTH.pack(len(body)) + body)
        sink.flush()

    version, ask = BACKENDS[settings.solver](settings)
    decode = msgspec.msgpack.Decoder(Question).decode
    send(Reply("ready", version, 0.0, *portable.resident_bytes()))
    while len(header := source.read(LENGTH.size)) == LENGTH.size:
        question = decode(source.read(LENGTH.unpack(header)[0]))
        send(answer(ask, version, question))


def main() -> None:
    """Bound this process, keep standard output for messages, serve.

    Example: ``python solvers/worker.py '{"solver": "z3", ...}'``; what Z3 prints goes to standard
    error.
    """
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    portable.bind_to_parent(settings.lifeline)
    portable.limit(memory_bytes=settings.memory_limit_bytes, stack_bytes=STACK_BYTES)
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(settings, sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
