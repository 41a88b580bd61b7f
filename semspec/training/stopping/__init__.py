"""Calibrate and train stoppers on thinking that is watched to its natural end."""
