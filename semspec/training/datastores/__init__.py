"""Build the datastores that retrieval drafters copy from."""
