"""Claims to templates to obligations, with a record of every step. Not trusted.

In: lineages of both sides. Out: the `Partition` (step records, templates, conclusions) and the
obligations of its templates. Open `partition.py` first.
"""
