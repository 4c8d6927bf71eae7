"""Proves that a parallel training plan computes what the single-device model computes.

The face of the project: the Python API, the command line and the reports. Everything that decides
lives in the floors below: `cluster`, `checker`, `frontends`, `partition`, `solvers`, `engine`.
"""
