"""Exact mathematics with no plan in sight. Trusted.

In: integers, names, rational numbers. Out: affine functions of mesh coordinates (`affine`) and a
hash-consed DAG of real-valued terms (`terms`). Open `terms.py` first.
"""
