"""The engine for SGLang: requests made of queries, servers, replicas, and models in this process.

``engine`` answers queries; ``requests`` says what is sent and what came back; ``http``, ``server`` and ``local``
are the ways to a model; ``replicas`` keeps a problem where its prefix is cached; ``identity`` refuses servers
that hold something else than the configuration says.
"""
