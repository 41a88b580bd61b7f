"""This is now: python -m semspec.run experiment=ours/retrieval-token, or experiment=ours/retrieval-steps"""

raise SystemExit(__doc__)
