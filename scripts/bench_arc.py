"""This is now: python -m semspec.run experiment=ours/arc"""

raise SystemExit(__doc__)
