"""Our own forward pass for dense llama-like models; private to ``semspec.engines.hf``.

``folder`` finds the files, ``spec`` reads the configuration, ``weights`` the tensors; ``model`` and
``step`` are the pass over many tokens and over one; ``cache`` and ``session`` keep what was read;
``reader`` collects what a query asks for; ``jobs``, ``generate`` and ``engine`` put them together.
"""
