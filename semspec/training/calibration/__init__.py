"""The measurements behind calibrations and audits."""
