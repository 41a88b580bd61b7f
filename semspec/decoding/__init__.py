"""TODO decoding."""
