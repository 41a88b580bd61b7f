"""Servers of several kinds and models in this process, to be certified or to serve as reference."""
