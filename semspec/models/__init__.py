"""Models on disk and on the Hub: where they are, what they hold, their tokenizers."""
