"""What a run leaves behind: its folder, its figures, and the statistics over them."""
