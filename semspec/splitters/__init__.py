"""Splitters, which decide where a unit ends: one file for each."""
