"""This is now: python -m semspec.run experiment=ours/heads"""

raise SystemExit(__doc__)
