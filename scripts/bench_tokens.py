"""This is now: python -m semspec.run experiment=ours/tokens"""

raise SystemExit(__doc__)
