"""What `make serving` measures: the server under load, its own overhead, and the page about both."""
