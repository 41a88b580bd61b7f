"""semspec: speculative decoding for reasoning models, by whole steps or by tokens."""

__version__ = "0.1.0"
