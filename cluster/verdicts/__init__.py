"""Verdicts on record: the ledger of a run, proofs kept across runs, the log.

In: answers of solvers. Out: the append-only ledger that a killed run resumes from. Open `ledger.py`
first. `verify` trusts it to hand on what solvers said; `check` does not.
"""
