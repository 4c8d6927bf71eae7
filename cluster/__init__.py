"""Executes templates: where, in what batches, within which memory, and with what on record.

The scheduler hands batches of templates to workers, the workers to warm solver children. A worker
lives in this process (`local`, which never imports Ray) or on a Ray cluster; both give the same
results. Batches are sized in seconds of work and admitted by a memory model that learns from
measured use; a solver that was killed is tried again with a larger reservation. Every result goes
to an append-only ledger with one writer, which is also the checkpoint that a killed run resumes
from.
"""
