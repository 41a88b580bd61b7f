"""The project's forward pass for dense llama-like models; private to ``semspec.engines.hf``.

``model`` is the pass over many tokens and ``step`` the pass over one; ``cache`` and ``session`` keep
the keys and values of contexts; ``reader`` and ``rows`` collect what a query reads; ``jobs``,
``generate`` and ``engine`` combine them. Configuration and weights come from ``semspec.models``.
"""
