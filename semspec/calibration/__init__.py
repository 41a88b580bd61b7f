"""Thresholds with guarantees: one file for one kind of calibration."""
