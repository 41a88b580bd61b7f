"""Builds the corpora that drafters copy from."""
