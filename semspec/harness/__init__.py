"""Adapters for other projects' benchmark programs."""
