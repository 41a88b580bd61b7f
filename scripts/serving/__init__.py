"""What `make serving` measures: the server under load, what it adds by itself, and the page about both."""
