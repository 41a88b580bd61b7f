"""The arithmetic and the bookkeeping of decoding that rules, drafters and engines share."""
