"""The SGLang engine: requests, servers, replicas, and models in this process.

``engine`` answers queries; ``requests`` translates them to requests and replies to values; ``http``,
``server`` and ``local`` reach a model; ``replicas`` keeps a problem where its prefix is cached;
``identity`` refuses servers that hold another model than the configuration names.
"""
