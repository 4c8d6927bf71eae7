"""Both programs run in float64 at small sizes. Not trusted for proofs; it refutes.

In: a plan. Out: losses and gradients of both sides on small random inputs, and where they differ.
Open `simulate.py` first.
"""
