"""Calls of tools, one file for each form in which models write them."""
