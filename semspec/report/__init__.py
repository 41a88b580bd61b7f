"""Reports of runs and sweeps: one HTML file each, nothing fetched, readable without JavaScript."""
