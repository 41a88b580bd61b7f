"""Reading from and writing to disk: files, locks, digests and the terminal."""
