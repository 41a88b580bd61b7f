"""Models on disk and on the Hub: their locations, contents and tokenizers."""
