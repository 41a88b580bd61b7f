"""The wheel is complete, versions agree, pins are complete, and nothing reads or writes pickle."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import semspec

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built as `python -m build` builds it, with the tools that are here: no network."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
    )
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_module_and_preset(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "semspec").rglob("*.py")}
    pages = {
        str(p.relative_to(ROOT))
        for folder in ("report", "serve")
        for p in (ROOT / "semspec" / folder).glob("*.[cjh][st]*")
    }
    assert {Path(page).suffix for page in pages} == {".css", ".js", ".html"}
    presets = {f"semspec/{p.relative_to(ROOT)}" for p in (ROOT / "conf").rglob("*.yaml")}
    assert len(modules) > 20
    assert "semspec/conf/config.yaml" in presets
    assert modules | pages | presets | {"semspec/py.typed"} <= names


def test_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"semspec", f"semspec-{semspec.__version__}.dist-info"}
    assert not [name for name in wheel.namelist() if "__pycache__" in name]


def test_versions_and_names_agree(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(f"semspec-{semspec.__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {semspec.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert PROJECT["version"] == semspec.__version__
    assert f"## [{semspec.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    return {normal(line.split("==")[0]): line.split("==")[1] for line in pinned}


def test_every_dependency_is_pinned_and_both_environments_agree() -> None:
    cpu, sglang = pins("cpu.txt"), pins("sglang-cpu.txt")
    core = {normal(re.split(r"[^\w.-]", d)[0]) for d in PROJECT["dependencies"]}
    dev = {normal(re.split(r"[^\w.-]", d)[0]) for d in PROJECT["optional-dependencies"]["dev"]}
    assert core | dev <= set(cpu)
    assert core <= set(sglang)
    apart = {
        "openai"
    }  # the client that tests talk to our server with; SGLang brings one of its own
    assert {name for name in cpu if sglang.get(name, cpu[name]) != cpu[name]} == apart


# joblib and numpy's object arrays are pickle under other names; ".pickle" is a suffix that is refused
PICKLE = r"(?<!\.)\b(c?pickle|dill|cloudpickle|joblib|shelve|marshal)\b|torch\.(load|save)\(|allow_pickle"
# the one exception: it reads the pickled heads of others, confined (SECURITY.md)
CONFINED = "semspec/heads/_unpickle_worker.py"


def test_nothing_reads_or_writes_pickle() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("semspec", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if str(path.relative_to(ROOT)) != CONFINED
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(PICKLE, line)
    ]
    assert not hits, "safetensors for tensors, JSON for the rest:\n" + "\n".join(hits)
    text = (ROOT / CONFINED).read_text()
    loads = re.findall(r"torch\.load\(.*\)", text)
    assert loads and all("weights_only=True" in load for load in loads), loads
