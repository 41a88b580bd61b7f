"""The SGLang engine: requests, servers and replicas.

``engine`` answers queries; ``requests`` translates queries to requests and replies to values. ``sender`` sends each request
to the problem's home server, which ``replicas`` chooses; ``streams`` reads answers while they are written; ``http`` and
``server`` talk to one server. ``checks`` and ``identity`` refuse servers whose model is not the configured one;
``keeper`` ends a server that is no longer needed.
"""
