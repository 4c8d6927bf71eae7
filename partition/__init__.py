"""From two programs to claims: lineages of all parallel values, stages cut at them, templates.

Nothing here is believed: what this package infers is written down as claims (Arrow tables), which
the solvers decide and `checker/` instantiates again.
"""
