"""Drafters propose tokens: one file for each."""
