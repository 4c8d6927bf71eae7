"""Plans run as a cluster runs them: every rank's own data, messages and waiting, by the plan alone.

The second opinion on what a plan means.  It reads the plan's data classes and the declarations of
operators; it knows nothing of rows, matching, lineages or obligations, and its collectives are
written from the semantics of `torch.distributed`, not taken from anybody else here.
"""
