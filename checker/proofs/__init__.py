"""Stored solver proofs followed step by step: ten rules, and ethos where it is installed. Trusted.

In: CPC proofs. Out: whether each refutes its text. Open `check.py` first.
"""
