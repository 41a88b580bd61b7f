"""Stoppers: who says at the end of a step that the thinking is done; one file each."""
