"""Disk access (files, locks, digests) and safe terminal output."""
