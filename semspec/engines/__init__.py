"""The engines, which answer queries about a model: one file for each."""
