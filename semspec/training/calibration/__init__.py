"""TODO calibration."""
