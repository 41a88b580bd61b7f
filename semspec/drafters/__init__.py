"""Drafters, one per file: each proposes tokens."""
