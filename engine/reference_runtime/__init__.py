"""Plans run rank by rank, as the parallel runtime would: the checker's own eye. Trusted.

In: a plan at small sizes. Out: every rank's values, or where it is stuck. It has collectives of its
own, written from `torch.distributed`'s semantics, and shares no unrolling, no families and no
matching with the prover: a deliberate twin. Open `runtime.py` first.
"""
