"""What is certified, and what it is held against: servers of several kinds, and models in this process."""
