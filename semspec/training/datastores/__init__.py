"""TODO datastores."""
