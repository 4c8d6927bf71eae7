"""Mutants of plans: derived by small declared changes, labelled by evaluation, and verified.

A mutator (`table`) changes a plan in one place; `label` says what the mutant is by running both
programs in float64 and in a finite field, without the prover; `campaign` derives, labels, verifies
and counts.
"""
