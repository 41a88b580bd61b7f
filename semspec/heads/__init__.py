"""Small heads that draft from the target's own hidden states."""
