"""Files, locks and digests: how anything is read from and written to disk."""
