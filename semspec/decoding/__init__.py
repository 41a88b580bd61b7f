"""Arithmetic and bookkeeping of decoding, shared by rules, drafters and engines."""
