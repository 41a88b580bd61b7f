"""TODO probes."""
