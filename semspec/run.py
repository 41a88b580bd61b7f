"""``python -m semspec.run``: solve the same problems plainly and speculatively.

Hydra composes the configuration. This module checks it, turns every user mistake into one line and exit
code 2, and calls ``semspec.runner``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from semspec import __version__, config
from semspec.choices.presets import given_options, is_yes, with_recommended
from semspec.choices.resumed import as_begun
from semspec.choices.settle import settle
from semspec.cli import plan, reproduce
from semspec.cli.arguments import check_arguments, split_arguments
from semspec.cli.command import ends_in_one_line
from semspec.cli.help import show
from semspec.config import build, one_line
from semspec.deferred import hydra
from semspec.errors import UserError
from semspec.jobs import sweep
from semspec.report.terminal import open_console
from semspec.results.records import RunFolder
from semspec.runner import execute
from semspec.storage.screen import complain, echo


def run_job(composed: DictConfig) -> None:
    """Execute one run in Hydra's run directory."""
    folder = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    try:
        plain = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(plain, dict)
        execute(build(composed), {str(k): v for k, v in plain.items()}, folder)
    except UserError as error:
        with contextlib.suppress(OSError):  # remove the folder that Hydra made, if it is empty
            folder.rmdir()
        # SystemExit, because Hydra prints a line of its own about any other exception
        complain(error)
        sys.exit(2)
    except KeyboardInterrupt as error:
        error.add_note(_kept(folder))
        raise


def _kept(folder: Path) -> str:
    """Say what an interrupted run has kept and how to resume it."""
    run = RunFolder(folder)
    said = run.status
    if "total" not in said:  # no problem was begun
        with contextlib.suppress(OSError):
            folder.rmdir()
        return "nothing was solved yet: run the same command again"
    here = Path(os.path.relpath(folder))
    shown = folder if ".." in here.parts else here
    done = sum(1 for _ in run.problem_lines())  # status.json may be one problem behind
    kept = f"{done} of {said['total']} problems are kept"
    return f"{kept}: the same command with {shlex.quote(f'hydra.run.dir={shown}')} resumes"


def main() -> None:
    ends_in_one_line(lambda: _main(sys.argv[1:]))


def _main(arguments: list[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        show()
        return
    if "--version" in arguments:
        echo(f"semspec {__version__}")
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if reproduce.asked(arguments):
        config.register_configs()
        sys.exit(reproduce.main(arguments))
    config.register_configs()
    flags, overrides = split_arguments(arguments)
    planned, overrides = plan.asked(overrides)
    given, overrides = overrides, as_begun(overrides)
    several, taken = {"-m", "--multirun"} & set(flags), ""
    if not several:
        overrides, taken = with_recommended(overrides)
    # ``helped``: in a sweep each job settles this by itself
    settled = settle(overrides, brought=True, helped=not several)
    overrides = settled.arguments
    own = [o for o in overrides if o.startswith("sweep=")]
    if own and not several:
        raise UserError(f"'{own[0]}' works only in a sweep: add -m, or use hydra.run.dir=FOLDER")
    check_arguments([o for o in overrides if o not in own], sweep=bool(several))
    if planned:
        if flags:
            raise UserError(f"plan=true plans one run: leave {' '.join(flags)} out")
        options = [o for o in overrides if not o.startswith(("hydra.", "hydra/"))]
        plan.show(build(config.compose(options)), settled.choices(), taken, given)
        return
    quiet = is_yes(given_options(overrides).get("quiet", ""))
    if (several or not flags) and not quiet:
        for choice in settled.choices():
            echo(str(choice))
    if several:
        if others := [f for f in flags if f.startswith("-") and f not in several]:
            raise UserError(f"{others[0]} cannot be used with -m: leave one of them out")
        sys.exit(sweep.main(overrides))
    if taken and not flags:
        open_console(quiet=quiet).say(taken, "dim")
    sys.argv[1:] = [*flags, *overrides]
    # otherwise Hydra would print errors in its own way and exit with 1
    os.environ["HYDRA_FULL_ERROR"] = "1"
    start = hydra.main(
        config_path=str(config.CONF.resolve()), config_name="config", version_base="1.3"
    )
    try:
        start(run_job)()
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error
    except OSError as error:  # Hydra cannot create the run's folder
        raise UserError(f"{error}: choose another hydra.run.dir, or free space") from error


if __name__ == "__main__":
    main()
