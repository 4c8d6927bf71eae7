"""Concrete interpreters: operator declarations evaluated over NumPy arrays.

Three element types, one array algebra.  `FloatInterpreter` computes with the true functions in
float64; `FieldInterpreter` computes in a finite field with random functions, a fast test of
identities that hold whatever the functions are; `TermInterpreter` builds the terms that solvers are
asked about.

Their tensors are `Weighted` arrays: a dimension may be represented by fewer positions than it has,
each standing for several true ones.  Shapes that operator code sees are true shapes.
"""

from shardproof.engine.interpreters.dims import Dim, Extent, Factor, Weighted, exact
from shardproof.engine.interpreters.field import FieldInterpreter
from shardproof.engine.interpreters.numeric import FloatInterpreter
from shardproof.engine.interpreters.symbolic import MASKED, TermInterpreter

__all__ = [
    "MASKED",
    "Dim",
    "Extent",
    "Factor",
    "FieldInterpreter",
    "FloatInterpreter",
    "TermInterpreter",
    "Weighted",
    "exact",
]
