"""Where a unit ends: one file for one splitter."""
