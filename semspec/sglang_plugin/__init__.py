"""semspec inside an SGLang server: probes, rules and drafters in its workers, without a fork.

SGLang calls ``register`` in each of its processes (entry point group ``sglang.srt.plugins``). It does
nothing and imports nothing unless the settings switch a part on (``settings``). From then on nothing
fails silently: a setting that cannot work ends the process with a one-line message.

``compat`` and ``compat_speculative`` alone know SGLang's private names. A part is a module beside them:

    Options                 frozen dataclass: the part's options in the settings
        prepare(options)        in every process: checks, and names that SGLang's arguments refer to
        hooks(options)          in processes that run a model: the hooks to apply
        everywhere(options)     optional: hooks for the server's other processes as well

docs/sglang_plugin.md is the page for users.
"""

from __future__ import annotations


def register() -> None:
    """Switch on the configured parts: the entry point. Exits on failure, as SGLang only logs errors."""
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
