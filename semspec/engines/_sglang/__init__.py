"""The SGLang engine: requests, servers and replicas.

``engine`` answers queries; ``requests`` translates them to requests and replies to values; ``http`` and
``server`` reach a model; ``replicas`` keeps a problem where its prefix is cached; ``identity`` refuses
servers that hold another model than the configuration names; ``keeper`` ends a server that nobody needs any more.
"""
