"""semspec inside an SGLang server: probes, rules and drafters in its workers, without a fork.

SGLang calls ``register`` in each of its processes (entry point group ``sglang.srt.plugins``). It does
nothing and imports nothing unless the settings switch a part on (``settings``). If they do, nothing fails
silently: a setting that cannot work ends the process with a one-line message.

Only ``compat`` and ``compat_*`` use SGLang's private names. A part is a module beside them, with a ``PART``
(``part.Part``) made of:

    Options                 the part's options in the settings
    hooks(options)          hooks for processes that run a model
    and, if needed:
        prepare(options)        in every process: checks, and names that SGLang's arguments refer to
        everywhere(options)     hooks for every process of the server

docs/sglang_plugin.md is the page for users.
"""

from __future__ import annotations


def register() -> None:
    """Switch the configured parts on (entry point). End the process on failure, because SGLang would only log it."""
    from semspec.sglang_plugin import settings

    if not settings.asked():
        return
    try:
        from semspec.sglang_plugin import start

        start.start(settings.read())
    except Exception as error:
        from semspec.errors import UserError, first_line
        from semspec.storage.screen import last_line

        message = str(error) if isinstance(error, UserError) else f"failed: {first_line(error)}"
        raise last_line(f"semspec's SGLang plugin: {message}") from error
