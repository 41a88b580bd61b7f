"""Stoppers decide at the end of a step whether the thinking is done; one file each."""
