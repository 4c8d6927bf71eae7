"""Causes as findings, contradictions of a plan with itself, counterexample values by shard.

In: divergences, repairs, simulations. Out: what reports show. Open `causes.py` first.
"""
