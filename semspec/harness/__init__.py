"""How benchmark programs of others run semspec."""
