"""What a parallel tensor is, in values of the single-device program. Trusted.

In: expressions over single-device tensors. Out: the expression table, strided views of
expressions, lineages (sums of factors times views, with what they have summed of a reduction), and
how views split, merge and partial sums join. Open `lineage.py` first; `expressions.py` has what a
node may be defined as, `nodes.py` their table.

Example: rank 1 of 2 holds ``w[512:1024, :]`` of a weight: one term, factor 1, a view of ``w``.
"""
