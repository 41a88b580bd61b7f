"""Datastores: texts that drafters copy from, found by last tokens (sparse) or by state (dense)."""
