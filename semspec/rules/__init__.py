"""What to keep of a draft: one file for one rule."""
