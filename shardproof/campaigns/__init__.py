"""Many runs, compared: sweeps over plans and nightly suites. Open `sweep/run.py` first."""
