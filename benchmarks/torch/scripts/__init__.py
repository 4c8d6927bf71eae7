"""Training scripts as people write them, with what surrounds a step: logs, checkpoints, devices."""
