"""Engines, which answer queries about a model; one file each."""
