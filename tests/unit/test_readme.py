"""README and documents: short enough, with links, paths and commands that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from semspec import config
from semspec.cli import artifacts, calibrate, calibrate_risk, compare, launch, publish
from semspec.cli.arguments import check_arguments, split_arguments
from semspec.cli.command import options
from semspec.jobs import experiments, parts
from semspec.jobs.launchers import options_of
from semspec.training.datastores import settings as datastores
from semspec.training.probes import compose as probes

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
INVENTED = {"semspec/drafters/bigram.py", "scripts/fit_temperatures.py"}  # made up by examples
INVENTED |= {"semspec/artifacts/temperatures.py", "tests/unit/test_x.py"}
COMMAND = re.compile(r"^python -m semspec\.(\w+) *(.*)$", re.M)
COMMANDS = sorted(
    {
        shlex.join([name, *shlex.split(arguments, comments=True)])
        for page in (README, ROOT / "docs" / "cli.md")
        for name, arguments in COMMAND.findall(page.read_text())
    }
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def of_run(arguments: Sequence[str]) -> None:
    if "--help" in arguments:
        return
    given = dict(a.partition("=")[::2] for a in arguments)
    if "experiment" in given:
        own = ("experiment", "scale", "plan", "hydra.run.dir")
        rest = [a for a in arguments if a.partition("=")[0] not in own]
        experiment = experiments.load(given["experiment"])
        assert list(experiments.jobs(experiment, given.get("scale", "real"), rest))
        return
    flags, overrides = split_arguments(arguments)
    launching = [o for o in overrides if o.startswith(("hydra.launcher", "hydra/launcher"))]
    options_of(launching)
    rest = [o for o in overrides if o not in launching and not o.startswith("sweep=")]
    check_arguments(config.expand_shorthands(rest), sweep="-m" in flags)


def of_offline_work(build: Callable[[Sequence[str]], object]) -> Callable[[Sequence[str]], None]:
    def parse(arguments: Sequence[str]) -> None:
        _, _, rest = parts.split(arguments)
        launching = [a for a in rest if a.startswith(("hydra.launcher", "hydra/launcher"))]
        options_of(launching)
        build([a for a in rest if a not in launching])

    return parse


def of_calibrate(arguments: Sequence[str]) -> None:
    probes.build(calibrate.split_options(arguments)[1])


def of_calibrate_risk(arguments: Sequence[str]) -> None:
    own = {"probe", "out", "apart", "measure", "least", "score"}
    given = [a for a in arguments if a.partition("=")[0] in own]
    unset = {"probe": "", "out": "", "apart": "", "score": "probe"}
    calibrate_risk._check(unset | options(given, sorted(own), "calibrate_risk"))
    probes.build([a for a in arguments if a not in given])


def of_audit(arguments: Sequence[str]) -> None:
    rest = [a for a in arguments if a.partition("=")[0] not in ("top", "smoothing", "out")]
    check_arguments(config.expand_shorthands(rest), sweep=False)


def of_compare(arguments: Sequence[str]) -> None:
    named = [a for a in arguments if "=" in a]
    assert len(arguments) - len(named) == 2
    options(named, compare.OPTIONS, "compare")


def of_artifacts(arguments: Sequence[str]) -> None:
    options(arguments[1:], artifacts.COMMANDS[arguments[0]][1], "artifacts")


def with_options(*known: str) -> Callable[[Sequence[str]], None]:
    def parse(arguments: Sequence[str]) -> None:
        assert options(arguments, known, "this")

    return parse


PARSERS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "run": of_run,
    "launch": lambda arguments: launch.plan(*launch.read(arguments)),
    "train_probe": of_offline_work(probes.build),
    "build_datastore": of_offline_work(datastores.split_options),
    "calibrate": of_calibrate,
    "calibrate_risk": of_calibrate_risk,
    "audit": of_audit,
    "compare": of_compare,
    "artifacts": of_artifacts,
    "publish": with_options(*publish.KNOWN),
    "pull": with_options("repo", "out"),
    "report": with_options("run", "sweep", "out", "transcripts", "schema"),
}


def test_the_readme_fits_in_a_few_screens() -> None:
    assert len(README.read_text().splitlines()) <= 125


def test_python_of_the_readme_compiles() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    compile(block, "README.md", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_document_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    bases = ROOT, ROOT / "semspec", page.parent
    for path in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|ya?ml|md|json))`", text):
        folder = path.partition("/")[0]
        ours = any((base / folder).is_dir() for base in bases)
        assert not ours or path in INVENTED or any((b / path).exists() for b in bases), path
    for path in re.findall(r"\bsemspec/[\w/]+\.py\b", text):
        assert path in INVENTED or (ROOT / path).exists(), path


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_readme_and_cli_page_are_what_the_commands_take(line: str) -> None:
    config.register_configs()
    name, *arguments = shlex.split(line)
    PARSERS[name](arguments)


def test_the_page_of_commands_has_a_section_with_examples_for_each() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for name in PARSERS:
        (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert len(COMMAND.findall(section)) >= 3, name
