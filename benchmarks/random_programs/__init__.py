"""A campaign of random parallel programs with a judge of their own: see `run`."""
