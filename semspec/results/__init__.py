"""A run's folder, its figures, and statistics over them."""
