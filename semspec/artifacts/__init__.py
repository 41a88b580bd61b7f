"""Artifacts: everything that is trained or measured and published, one file per kind."""
