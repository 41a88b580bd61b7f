"""README and documents: short enough, with links, paths and commands that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from semspec import config
from semspec.choices.settle import expand_shorthands
from semspec.cli import (
    artifacts,
    audit,
    calibrate,
    calibrate_risk,
    calibrate_stop,
    certify,
    compare,
    convert_head,
    convert_nli,
    launch,
    plan,
    publish,
    pull,
    report,
    serve,
)
from semspec.cli.arguments import check_arguments, split_arguments
from semspec.jobs import experiments, stages
from semspec.jobs.launchers import options_of
from semspec.jobs.options import pairs, read, read_known
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


def names_something(dotted: str) -> bool:
    """Return whether a dotted name is a module of the package, or is written in one."""
    place, names = ROOT, dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    module = place / f"{names.pop(0)}.py" if names else place / "__init__.py"
    invented = str(module.relative_to(ROOT)) in INVENTED
    if not module.exists():  # a name that the package itself has
        names, module = [module.stem], place / "__init__.py"
    return invented or (module.exists() and all(n in module.read_text() for n in names))


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
    flags, overrides = split_arguments(plan.asked(arguments)[1])
    launching = [o for o in overrides if o.startswith(("hydra.launcher", "hydra/launcher"))]
    options_of(launching)
    rest = [o for o in overrides if o not in launching and not o.startswith("sweep=")]
    check_arguments(expand_shorthands(rest), sweep="-m" in flags)


def of_offline_work(build: Callable[[Sequence[str]], object]) -> Callable[[Sequence[str]], None]:
    def parse(arguments: Sequence[str]) -> None:
        own, launching = stages.split_launcher(stages.split(arguments)[2])
        options_of(launching)
        build(own)

    return parse


def of_calibrate(arguments: Sequence[str]) -> None:
    rest = calibrate.split_options(arguments)[1]
    probes.build([f"{name}={value}" for name, value in rest.items()])


def of_calibrate_risk(arguments: Sequence[str]) -> None:
    own, rest = read_known(calibrate_risk.Options, arguments, "semspec.calibrate_risk")
    calibrate_risk._check(own)
    calibrate_risk._composed(pairs(rest))


def of_audit(arguments: Sequence[str]) -> None:
    rest = read_known(audit.Options, arguments, "semspec.audit")[1]
    check_arguments(expand_shorthands(rest), sweep=False)


def of_compare(arguments: Sequence[str]) -> None:
    assert len(read_known(compare.Options, arguments, "semspec.compare")[1]) == 2


def of_artifacts(arguments: Sequence[str]) -> None:
    name, *rest = arguments
    artifacts.options_of(name, rest)


PARSERS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "run": of_run,
    "serve": lambda arguments: serve.read(arguments),
    "launch": lambda arguments: launch.plan(*launch.read(arguments)),
    "train_probe": of_offline_work(probes.build),
    "build_datastore": of_offline_work(datastores.split_options),
    "calibrate": of_calibrate,
    "calibrate_risk": of_calibrate_risk,
    "calibrate_stop": lambda arguments: calibrate_stop.read(arguments),
    "audit": of_audit,
    "certify": lambda arguments: certify._check(
        read(certify.Options, arguments, "semspec.certify")
    ),
    "compare": of_compare,
    "artifacts": of_artifacts,
    "publish": lambda arguments: read(publish.Options, arguments, "semspec.publish"),
    "convert_head": lambda arguments: read(convert_head.Options, arguments, "semspec.convert_head"),
    "convert_nli": lambda arguments: read(convert_nli.Options, arguments, "semspec.convert_nli"),
    "pull": lambda arguments: read(pull.Options, arguments, "semspec.pull"),
    "report": lambda arguments: read(
        report.Options,
        # a folder may come without a name: which it has depends on what lies there
        [one if "=" in one else f"run={one}" for one in arguments],
        "semspec.report",
    ),
}


def test_the_readme_fits_in_a_few_screens() -> None:
    assert len(README.read_text().splitlines()) <= 117


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
    for dotted in re.findall(r"(?<![\w.])semspec(?:\.\w+)+", text):
        assert dotted.split(".")[-1].isupper() or names_something(dotted), dotted  # semspec.NAME


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.deep
def test_commands_of_readme_and_cli_page_are_what_the_commands_take(line: str) -> None:
    config.register_configs()
    name, *arguments = shlex.split(line)
    PARSERS[name](arguments)


def test_the_page_of_commands_has_a_section_with_examples_for_each() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for name in PARSERS:
        (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert len(COMMAND.findall(section)) >= 3, name
