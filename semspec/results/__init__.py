"""TODO results."""
