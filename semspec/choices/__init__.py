"""Settle what a command line leaves open: presets, the engine, the rule, and full names of options."""
