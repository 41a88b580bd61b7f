"""This is now: python -m semspec.run experiment=ours/steps"""

raise SystemExit(__doc__)
