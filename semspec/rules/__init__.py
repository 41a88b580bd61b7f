"""Rules decide how much of a draft to keep: one file for each."""
