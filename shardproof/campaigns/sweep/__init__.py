"""Sweeps: many plans, each made and verified in processes of its own, as one table and a page."""
