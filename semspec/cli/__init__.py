"""The commands ``python -m semspec.X``, one file each."""
