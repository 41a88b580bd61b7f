"""Datastores: texts that drafters copy from, found by their last tokens (sparse) or by a state (dense)."""
