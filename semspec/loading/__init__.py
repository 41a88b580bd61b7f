"""The models of a configuration, from its plugins' look-ups to loaded engines."""
