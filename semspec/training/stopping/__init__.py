"""What stoppers are calibrated on and trained with: thinking that is watched to its natural end."""
