"""One operator instance as a claim, and when two claims are one. Trusted.

In: an operator instance with the lineages of its inputs and outputs. Out: the claim, its cone (the
definitions that it reads) and the symmetry test by which two claims share one proof. Open
`claim.py` first.
"""
