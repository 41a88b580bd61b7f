"""This is now: python -m semspec.run experiment=ours/ahead"""

raise SystemExit(__doc__)
