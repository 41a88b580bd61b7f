"""This is now: python -m semspec.run experiment=ours/reuse-editing, or experiment=ours/reuse-grounded"""

raise SystemExit(__doc__)
