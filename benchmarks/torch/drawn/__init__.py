"""Transformer steps that a generator draws, each parallel in a drawn way, judged by Gloo."""
