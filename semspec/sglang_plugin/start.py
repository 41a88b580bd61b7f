"""Start the plugin in one of SGLang's processes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from semspec.errors import UserError
from semspec.sglang_plugin import compat, protocol, settings
from semspec.sglang_plugin.part import Part


def start(parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Check SGLang's version, then apply the parts' hooks; raise UserError for an unknown part."""
    compat.check_version()
    hooks: list[compat.Hook] = []
    if parts:  # requests to any part need these
        hooks.append(compat.Hook(compat.ARRIVING, compat.arriving(protocol.from_label), "BEFORE"))
        hooks.append(compat.Hook(compat.CHECKED, compat.checking(protocol.check), "AFTER"))
    for name, given in parts.items():
        try:
            part: Part[Any] = importlib.import_module(f"semspec.sglang_plugin.{name}").PART
        except ModuleNotFoundError as error:
            if error.name != f"semspec.sglang_plugin.{name}":
                raise
            raise UserError(f"this semspec has no part '{name}' for SGLang: update it") from error
        names = part.option_names and part.option_names()
        options = settings.build(part.options, given, name, names)
        part.prepare(options)
        hooks += part.everywhere(options)
        if compat.runs_models():
            hooks += part.hooks(options)
    compat.apply(hooks)
