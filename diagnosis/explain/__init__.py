"""Causes as findings, contradictions of a plan with itself, counterexample values by shard.

In: culprits, repairs, simulations. Out: what reports show. Open `causes.py` first.
"""
