"""An OpenAI-compatible server on top of the solver; it streams the thinking step by step."""
