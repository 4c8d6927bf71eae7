"""Memory: measured, budgeted, predicted, and what did not fit tried again.

In: measurements of solver children. Out: reservations and budgets. Open `model.py` first. Not
trusted: a wrong prediction costs time, never a verdict.
"""
