"""A run's folder, its figures, and the statistics over them."""
