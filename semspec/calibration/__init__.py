"""Thresholds with guarantees: one file for each kind of calibration."""
