"""Reports of runs and sweeps: one HTML file each, which fetches nothing and is readable without JavaScript."""
