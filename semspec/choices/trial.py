"""Test whether a command line would be refused, since choices made for the user have to work."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf.errors import OmegaConfBaseException

from semspec.choices.names import full_names
from semspec.config import build, compose, one_line, parse
from semspec.deferred import hydra
from semspec.errors import UserError


def refusal(arguments: Sequence[str], brought: bool = False) -> str:
    """Say why some configuration of a command line is refused; "" if all can run.

    In a sweep, every value is tried once, with the first values of all other options.
    """
    choices = []
    try:
        for text in full_names(arguments, brought):
            if text.startswith(("hydra.", "hydra/", "sweep=")):
                continue
            (override,) = parse([text])
            several = override.is_sweep_override()
            values = list(override.sweep_string_iterator()) if several else []
            key = text.partition("=")[0]
            choices.append([f"{key}={value}" for value in values] or [text])
        first = [values[0] for values in choices]
        for at, values in enumerate(choices):
            for value in values if at == 0 else values[1:]:
                build(compose([*first[:at], value, *first[at + 1 :]]))
    except (UserError, hydra.errors.HydraException, OmegaConfBaseException) as error:
        return one_line(error).partition(": ")[0]
    return ""
