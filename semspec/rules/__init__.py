"""Rules, one per file: each decides how much of a draft to keep."""
