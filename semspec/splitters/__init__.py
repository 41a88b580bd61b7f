"""Splitters decide where a unit ends; one file each."""
