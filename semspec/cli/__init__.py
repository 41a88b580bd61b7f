"""Commands: what each ``python -m semspec.X`` does, one file a command."""
