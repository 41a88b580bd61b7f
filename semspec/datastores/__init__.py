"""Datastores: texts to copy drafts from, found by the last tokens (sparse) or by the state (dense)."""
