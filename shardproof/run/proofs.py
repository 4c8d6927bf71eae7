"""Proofs of templates (``verify --proofs``): cvc5's, and whether Z3 says the same.

Every text is given to cvc5 for a proof, in a bounded child like every other question, and to each
solver that has not said anything about it yet; so the certificate can say which templates only one
solver can prove.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast, get_args

from shardproof.cluster.settings import Settings
from shardproof.engine.records.certificate import ProofEntry
from shardproof.engine.records.proofs import digest
from shardproof.run.solve import Answers
from shardproof.solvers import Mode, Portfolio, Query
from shardproof.solvers.answers import SolverName

#: A proof takes longer than a verdict: how many times.
PATIENCE = 4

Proof = tuple[ProofEntry, str]


def produce(answers: Answers, settings: Settings, tell: Callable[[int, int], None]) -> list[Proof]:
    """The proof of every text, by number; ``tell``: (done, total) as it goes on.

    Example: a template that Z3 proved is given to cvc5 for four times the timeout; where cvc5 has
    no proof in time, the entry's ``reason`` is "timeout: ...".
    """
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(answers.texts)):
        left.put(number)
    proofs: dict[int, Proof] = {}
    lock = threading.Lock()

    def work() -> None:
        with _Provers(settings) as provers:
            while True:
                try:
                    number = left.get_nowait()
                except queue.Empty:
                    return
                proof = provers.of(answers, number)
                with lock:
                    proofs[number] = proof
                    tell(len(proofs), len(answers.texts))

    with ThreadPoolExecutor(settings.local_workers()) as pool:
        for future in [pool.submit(work) for _ in range(settings.local_workers())]:
            future.result()
    return [proofs[number] for number in sorted(proofs)]


class _Provers:
    """Each solver by itself, and cvc5 with more time for proofs."""

    def __init__(self, settings: Settings) -> None:
        limits = (settings.timeout, settings.first_limit_bytes, settings.seed)
        self.alone = {name: Portfolio(cast("Mode", name), *limits) for name in get_args(SolverName)}
        self.proving = Portfolio(
            "cvc5", settings.timeout * PATIENCE, settings.first_limit_bytes, settings.seed
        )

    def __enter__(self) -> _Provers:
        return self

    def __exit__(self, *_: object) -> None:
        for portfolio in (*self.alone.values(), self.proving):
            portfolio.close()

    def of(self, answers: Answers, number: int) -> Proof:
        """What is to be known of one text."""
        texts, solved = answers.texts[number], answers.solved[number]
        proving = [a.solver for a in solved.answers if a.verdict == "unsat"]
        text = texts[1] if solved.rung == "nonlinear" else texts[0]
        proof = self.proving.prove(text)
        if proof.verdict == "unsat":
            proving.append("cvc5")
        for name, portfolio in self.alone.items():
            if name not in proving and portfolio.solve(Query(name, *texts)).verdict == "unsat":
                proving.append(name)
        entry = ProofEntry(
            template=number,
            rung=solved.rung,
            text=digest(text),
            proof=digest(proof.proof),
            first=proving[0] if solved.verdict == "unsat" else "",
            solvers=tuple(sorted(set(proving))),
            reason="" if proof.proof else f"{proof.verdict}: {proof.reason}".rstrip(": "),
        )
        return entry, proof.proof
