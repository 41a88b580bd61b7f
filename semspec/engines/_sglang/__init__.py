"""The SGLang engine: requests, servers and replicas.

``engine`` answers queries; ``requests`` translates them to requests and replies to values. ``sender`` sends a request to
the problem's home server, which ``replicas`` knows; ``streams`` reads answers as they are written; ``http`` and ``server``
reach one server. ``checks`` and ``identity`` refuse servers that hold another model than the configuration names;
``keeper`` ends a server that nobody needs any more.
"""
