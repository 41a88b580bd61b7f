"""What is trained, measured and published: one file a kind."""
