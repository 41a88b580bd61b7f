"""Models on disk and on the Hub: locations, contents and tokenizers."""
