"""Every obligation stated again, without `partition`. Trusted.

In: stored steps. Out: the texts that have to be proved. Open `restate.py` first. `forms`,
`translations` and `families` are deliberate twins of the prover's: a second text of the same
conditions.
"""
