"""The ground floor: what a plan and its meaning are made of.

Everything here is about values and laws, not about any input format, solver or scheduler, and
imports nothing of ours: terms (a hash-consed DAG of real-valued expressions) are what the
operators are read over when a solver is to compare them.
"""
