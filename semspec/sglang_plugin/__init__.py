"""semspec inside an SGLang server: probes, rules and drafters in its own workers, without a fork.

SGLang calls ``register`` in each of its processes (entry point group ``sglang.srt.plugins``). Nothing
happens, and nothing is imported, unless the server was asked to (``settings``). From then on
nothing fails quietly: what cannot work as asked ends the process with one line.

``compat`` is the one file that knows SGLang's private names. A part is a module beside this one:

    Options                 frozen dataclass: the part's options in the settings
    prepare(options)        in every process: checks, and names that SGLang's arguments refer to
    hooks(options)          in processes that run a model: what is hooked, and how
    everywhere(options)     if it is there: what is hooked in the server's other processes, too

docs/sglang_plugin.md is the page for users.
"""

from __future__ import annotations


def register() -> None:
    """The entry point. SGLang only logs what a plugin raises, so a refusal is an exit."""
    from semspec.sglang_plugin import settings

    if not settings.asked():
        return
    try:
        from semspec.sglang_plugin import start

        start.start(settings.read())
    except Exception as error:
        from semspec.errors import UserError, first_line
        from semspec.storage.screen import last_line

        told = str(error) if isinstance(error, UserError) else f"failed: {first_line(error)}"
        raise last_line(f"semspec's SGLang plugin: {told}") from error
