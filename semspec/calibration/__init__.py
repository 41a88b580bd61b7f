"""Choose thresholds, with guarantees where labels allow: one file per kind of calibration."""
