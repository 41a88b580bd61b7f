"""The project's forward pass for dense llama-like models; private to ``semspec.engines.hf``.

``model`` is the pass over many tokens, ``step`` the pass over one or a few. ``cache`` and ``session`` hold
the KV cache of each context; ``reader`` and ``rows`` collect what a query reads; ``jobs``, ``generate`` and
``engine`` combine them. Configuration and weights come from ``semspec.models``.
"""
