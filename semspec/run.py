"""``python -m semspec.run``: solve problems plainly and speculatively, side by side.

Hydra composes the configuration; this module checks it, turns every mistake that a user can make
into one line and exit code 2, and hands over to ``semspec.runner``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from semspec import __version__, config, reproduce
from semspec.command import ends_in_one_line
from semspec.errors import UserError
from semspec.urls import without_passwords


def build(composed: DictConfig) -> config.RunConfig:
    """The typed configuration, every plugin an object."""
    try:
        made = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise UserError(one_line(error)) from error
    assert isinstance(made, config.RunConfig), type(made)
    if made.prompt is not None:
        from semspec.benchmarks.prompt import Prompt

        made.benchmark = Prompt(text=made.prompt)
    config.check(made)
    return made


def compose(overrides: Sequence[str]) -> DictConfig:
    """The configuration of one job, as Hydra composes it."""
    config.register_configs()
    with hydra.initialize_config_dir(str(config.CONF.resolve()), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))


FLAGS_WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--info", "-i"}


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hydra's own flags with their values, and the overrides; Hydra wants the flags first."""
    flags: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        if argument.startswith("-") or (flags and flags[-1] in FLAGS_WITH_VALUE):
            flags.append(argument)
        else:
            overrides.append(argument)
    return flags, overrides


def check_arguments(
    given: Sequence[str],
    sweep: bool = True,
    command: str = "semspec.run",
    own: Collection[str] = (),
) -> None:
    """Composes once for every value of every swept option, so that a mistake ends before work.

    ``command`` is whose help is named where an option is unknown, ``own`` what it knows besides.
    """
    choices = []
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"'{text}' is not an option: options are written name=value")
        if key.startswith("+"):
            raise UserError(f"'{text}' would add an option that nothing reads: leave the + out")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and not value.strip():
            raise UserError(f"{key} is empty: name a folder")
        try:
            (override,) = OverridesParser.create().parse_overrides([text])
            swept = override.is_sweep_override()
            values = list(override.sweep_string_iterator()) if swept else []
        except HydraException as error:
            raise UserError(f"cannot read '{text}' ({one_line(error)}): quote it") from error
        if swept and not sweep:
            raise UserError(_several(text, [a for a in given if a != text]))
        choices.append([f"{key}={value}" for value in values] if swept else [text])
    first = [values[0] for values in choices]
    for at, values in enumerate(choices):
        for value in values if at == 0 else values[1:]:
            job = [*first[:at], value, *first[at + 1 :]]
            plain = [a for a in job if not a.startswith(("hydra.", "hydra/"))]
            try:
                build(compose(plain))
            except (HydraException, OmegaConfBaseException) as error:
                raise UserError(_explain(error, plain, command, own)) from error
    if not choices:
        build(compose([]))


def _several(text: str, others: Sequence[str]) -> str:
    """What to write in place of several values, so that a shell and Hydra take it as one."""
    told = f"'{text}' is several values: add -m for a sweep"
    key, _, value = text.partition("=")
    plain = [a for a in others if not a.startswith(("hydra.", "hydra/"))]
    for one in (f"{key}=[{value}]", f"{key}='{value}'"):
        with contextlib.suppress(UserError, HydraException, OmegaConfBaseException):
            build(compose([*plain, one]))
            return f"{told}, or write {shlex.quote(one)} for one value"
    return told


def _explain(error: Exception, job: Sequence[str], command: str, own: Collection[str]) -> str:
    """What is wrong with which argument, and what would be right."""
    keys = [f.name for f in fields(config.RunConfig)]
    for argument in job:
        key, equals, value = argument.partition("=")
        key = key.lstrip("+~")
        if not equals:
            return f"'{argument}' is not an option: options are written name=value"
        if key in config.GROUPS or key == "model":
            known = config.options(key)
            if value not in known:
                near = config.nearest(value, list(known))
                return f"unknown {key} '{value}'{near} known: {', '.join(known)}"
        elif "." not in key and key not in keys:
            hint = config.nearest(key, [*keys, *own])
            return f"unknown option '{key}'{hint} see python -m {command} --help"
    told = one_line(error)
    culprit = next((a for a in job if f"'{a.partition('=')[2]}'" in told), None)
    return f"{culprit}: {told}" if culprit else told


def one_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # Hydra wraps what says more
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [x for x in lines if not x.startswith(("full_key", "object_type", "reference_type"))]
    return "; ".join(kept[:2]) or type(error).__name__


def run_job(composed: DictConfig) -> None:
    """One run, in Hydra's run directory."""
    from semspec.runner import execute

    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        plain = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(plain, dict)
        execute(build(composed), {str(k): v for k, v in plain.items()}, folder)
    except UserError as error:
        with contextlib.suppress(OSError):  # Hydra has made the folder; where nothing is in it,
            folder.rmdir()  # nothing shall be left
        # SystemExit, because Hydra prints a line of its own about any other
        print(f"semspec: {without_passwords(str(error))}", file=sys.stderr)
        sys.exit(2)


def main() -> None:
    ends_in_one_line(lambda: _main(sys.argv[1:]))


def _main(arguments: list[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        from semspec.help import show

        show()
        return
    if "--version" in arguments:
        print(f"semspec {__version__}")
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if reproduce.asked(arguments):
        config.register_configs()
        sys.exit(reproduce.main(arguments))
    config.register_configs()
    flags, overrides = split_arguments(arguments)
    overrides = config.expand_shorthands(overrides)
    several = {"-m", "--multirun"} & set(flags)
    own = [o for o in overrides if o.startswith("sweep=")]
    if own and not several:
        raise UserError(f"'{own[0]}' is of a sweep: add -m, or use hydra.run.dir=FOLDER")
    check_arguments([o for o in overrides if o not in own], sweep=bool(several))
    if several:
        from semspec import sweep

        if others := [f for f in flags if f.startswith("-") and f not in several]:
            raise UserError(f"{others[0]} cannot be used with -m: leave one of them out")
        sys.exit(sweep.main(overrides))
    sys.argv[1:] = [*flags, *overrides]
    # Hydra would print an error its own way and exit with 1: let it through to here
    os.environ["HYDRA_FULL_ERROR"] = "1"
    start = hydra.main(
        config_path=str(config.CONF.resolve()), config_name="config", version_base="1.3"
    )
    try:
        start(run_job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error
    except OSError as error:  # Hydra's own: the run's folder cannot be made
        raise UserError(f"{error}: choose another hydra.run.dir, or free space") from error


if __name__ == "__main__":
    main()
