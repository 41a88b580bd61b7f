"""`make certificates`: check whether the speculation of llama.cpp and OpenVINO GenAI is lossless.

    python scripts/certify_rivals.py [--detect 0.15] [--engines llama.cpp openvino]
    python scripts/certify_rivals.py --check      send nothing; print what is out of date

It tests every kind of speculation, and none, on the embedded pair in float32: `python -m semspec.certify` compares greedy and sampled
texts with transformers' forward pass of the same weights. llama.cpp is asked over HTTP, like any server; OpenVINO
GenAI through its pipeline in this process. A kill costs one certificate, and the same command resumes. Results go to
results/certificates.json and tables to docs/certify.md.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from figures_page import ROOT, FiguresPage
from rivals.base import Problem, Workload
from script_kit import check_known, markdown, parser

from semspec.cli.certify import main as certify
from semspec.storage import provenance
from semspec.storage.files import read_json, write_text

MARKS = ("<!-- certificates: written by make certificates -->", "<!-- end of certificates -->")
HUB = ROOT / "hub_artifacts"
FOLDER = ROOT / "runs/certificates"
LLAMA, OPENVINO = "llama.cpp", "openvino"
PACKAGES = {LLAMA: "xllamacpp", OPENVINO: "openvino-genai"}
NGRAM, DRAFTED = 2, 5  # tokens that copying kinds match, and that all kinds draft at most
PARALLEL = 4  # requests at a time in a server
LIMIT = 600  # tokens of a prompt and what follows it
SAMPLINGS: dict[str, tuple[str, ...]] = {
    "T = 1": ("temperature=1",),
    "T = 1.4, top-k 12": ("temperature=1.4", "top_k=12", "check=sampled"),
}
FIRST = "T = 1"
PLAIN = "none"
VERDICTS = {"faulty": "**faulty**", "as the model": "no fault found"}  # as the page shows them
ONCE = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")  # only with the first sampling
LLAMA_KINDS = (PLAIN, "draft model", "draft model, probabilistic", "ngram-simple", "ngram-map-k",
               "ngram-map-k4v", "ngram-mod", "ngram-cache")  # fmt: skip
OPENVINO_KINDS = {PLAIN: (), "draft model": ("assistant",), "prompt lookup": (f"lookup={DRAFTED}",)}
_QUESTION = "Modulo 100, let t=24, f is 2 * t, r is 7 * f, k is 4 * r, b is k + 8. Find b."
_DAYS = "Counting weekdays, let d=Monday, b is 2 days before d, t is 2 days after b, g is 2 days after d. Find g."
_ASKED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n{}\n\n"
_FIRST = "To find f we need 2 * t, so we take 2 * t=24 modulo 100 and obtain f=48."
_SECOND = "To find r we need 7 * f, so we take 7 * f=48 modulo 100 and obtain r=36."
# prompts end where a step does: the next step may begin in several ways, and copying drafters have a step to copy
PROMPTS = (
    _ASKED.format(_QUESTION, _FIRST),
    _ASKED.format(_QUESTION, f"{_FIRST}\n\n{_SECOND}"),
    _ASKED.format(
        _DAYS,
        "First of all, we write down that d=Monday, because we count every day from it.\n\nTo find b we need 2 days before d,"
        " so we count 2 days before d=Monday and obtain b=Saturday.",
    ),
)


@dataclass(frozen=True)
class Case:
    """One engine with one kind of speculation and one sampling."""

    engine: str
    kind: str
    sampling: str

    @property
    def name(self) -> str:
        return "_".join((self.engine, self.kind, self.sampling)).replace(",", "").replace(" ", "-")


def cases(engines: Sequence[str]) -> list[Case]:
    known = {LLAMA: LLAMA_KINDS, OPENVINO: tuple(OPENVINO_KINDS)}
    every = [Case(e, kind, s) for s in SAMPLINGS for e in engines for kind in known[e]]
    return [case for case in every if case.sampling == FIRST or case.kind not in ONCE]


def digest() -> str:
    """Return the digest of what the verdicts depend on: the command's code, the engines, the models."""
    whole = hashlib.sha256(repr((PROMPTS, SAMPLINGS, NGRAM, DRAFTED, PARALLEL)).encode())
    files = [*sorted((ROOT / "semspec/certify").rglob("*.py")),
             *(ROOT / f"scripts/rivals/{name}.py" for name in ("llama_cpp", "gguf_model", "openvino_model")),
             *(HUB / f"tiny-{name}/model.safetensors" for name in ("target", "draft")),
             ROOT / "constraints/rivals.txt"]  # fmt: skip
    for file in files:
        whole.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:16]


@contextmanager
def llama_server(kind: str, models: Path) -> Iterator[str]:
    """Start llama.cpp's server in this process, drafting as early as it can; yield its address."""
    from rivals.llama_cpp import LlamaCpp

    problem = Problem("longest", "", tuple(range(LIMIT)))
    pair = (HUB / "tiny-target", HUB / "tiny-draft")
    rival = LlamaCpp(Workload("", "", "tiny", *pair, (), 0, (problem,)), models, "f32")
    drafted = kind.startswith("draft model")
    named = f"draft model, {DRAFTED} tokens" if drafted else "" if kind == PLAIN else kind
    params = rival.params(named)
    params.n_parallel, params.n_ctx = PARALLEL, PARALLEL * rival.context
    own = params.speculative
    own.draft.probabilistic = kind == "draft model, probabilistic"
    for part in (own.ngram_simple, own.ngram_map_k, own.ngram_map_k4v):
        part.size_n, part.size_m = NGRAM, DRAFTED
    own.ngram_mod.n_match, own.ngram_mod.n_min, own.ngram_mod.n_max = NGRAM, 1, DRAFTED
    import xllamacpp

    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


def openvino_model(name: str, models: Path) -> Path:
    from rivals.openvino_model import write_ir

    into = models / f"{name}-openvino-whole"
    if not (into / "openvino_model.bin").exists():
        write_ir(HUB / name, into)
    return into


def asked(case: Case, detect: float, folder: Path) -> dict[str, Any]:
    """Return the certificate of one case."""
    out, models = folder / f"{case.name}_{detect:g}", FOLDER / "models"
    if (known := read_json(out / "certificate.json")) is not None:
        return dict(known)
    # an earlier certificate cannot resume: the server has another port each time
    shutil.rmtree(out, ignore_errors=True)
    prompts = folder / "prompts.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(prompts, "".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS))
    common = [
        f"reference={HUB / 'tiny-target'}", f"prompts={prompts}", f"out={out}", f"detect={detect}",
        "tie=0.01", "length=96", f"concurrency={PARALLEL}", *SAMPLINGS[case.sampling],
    ]  # fmt: skip
    if case.engine == LLAMA:
        with llama_server(case.kind, models) as address:
            return _run([f"url={address}", *common], out)
    more = [
        f"assistant={openvino_model('tiny-draft', models)}" if option == "assistant" else option
        for option in OPENVINO_KINDS[case.kind]
    ]
    return _run([f"path={openvino_model('tiny-target', models)}", *more, *common], out)


def _run(options: Sequence[str], out: Path) -> dict[str, Any]:
    try:
        certify(options)
    except SystemExit as ended:
        if ended.code not in (0, 1):
            return {"error": f"certify ended with exit code {ended.code}"}
    found = read_json(out / "certificate.json")
    assert isinstance(found, dict)
    return found


def row(case: Case, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved part of a certificate."""
    of = {"engine": case.engine, "kind": case.kind, "sampling": case.sampling}
    if "error" in found:
        return of | dict(found)
    drawn, greedy = found["sampled"], found["greedy"]
    tests = sorted(drawn.pop("tests"), key=lambda t: t["p"])
    told = None if greedy is None else {k: v for k, v in greedy.items() if k != "prompts"}
    worst = None
    if greedy is not None:
        gaps = [one["worst"]["gap"] for one in greedy["prompts"] if one["worst"]]
        worst = max((g for g in gaps if g is not None), default=None)
    return {
        **of,
        "verdict": found["verdict"],
        "sentences": found["sentences"],
        "greedy": told and {**told, "worst_gap": worst},
        "sampled": drawn,
        "strongest": tests[:3],
        "drafts": found["drafts"],
    }


def collect(engines: Sequence[str], detect: float) -> dict[str, Any]:
    """Certify all cases, one after the other."""
    of = digest()
    folder = FOLDER / of
    rows = [row(case, asked(case, detect, folder)) for case in cases(engines)]
    return {
        "digest": of,
        "versions": {n: metadata.version(p) for n, p in PACKAGES.items() if n in engines},
        "prompts": list(PROMPTS),
        "provenance": provenance.collect(),
        "rows": rows,
    }


def page(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    headings = (
        "speculation",
        "sampling",
        "matching greedy tokens",
        "sampled outcomes",
        "accepted draft tokens",
        "verdict",
    )
    lines = []
    for engine, version in found["versions"].items():
        rows = [one for one in found["rows"] if one["engine"] == engine]
        lines += [f"**{engine}** ({PACKAGES[engine]} {version})", ""]
        lines += [*markdown(headings, [_cells(one) for one in rows]), ""]
    return "\n".join(lines).rstrip("\n")


def _cells(one: Mapping[str, Any]) -> list[str]:
    if "error" in one:
        return [one["kind"], one["sampling"], "", "", "", one["error"]]
    greedy, drawn, drafts = one["greedy"], one["sampled"], one["drafts"]
    texts = "" if greedy is None else f"{greedy['agreed']} of {greedy['tokens']}"
    outcomes = f"{drawn['outcomes_per_prefix']} per prompt"
    if drawn["stopped"] == "evidence":
        said = f"{outcomes}; evidence 10^{drawn['log10_evidence']:.0f} to 1"
    else:
        least = min(t["adjusted_p"] for t in one["strongest"])
        said = f"{outcomes}; lowest p {least:.2g}; detectable {drawn['detectable_total_variation']:.2f}"
    kept = "" if not drafts else f"{drafts['kept']:,}"
    kept += f" of {drafts['drafted']:,}" if drafts and drafts["drafted"] is not None else ""
    verdict = VERDICTS.get(one["verdict"], one["verdict"])
    return [one["kind"], one["sampling"], texts, said, kept, verdict]


FIGURES = FiguresPage(
    "certificates",
    "docs/certify.md",
    MARKS,
    page,
    "the code or the models have changed since these engines were certified",
)


def main() -> int:
    a = parser(
        __doc__,
        detect=(0.2, "the total variation to detect"),
        engines=(list(PACKAGES), "which engines"),
        **FIGURES.options,
    ).parse_args()
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    check_known(a.engines, PACKAGES)
    found = collect(a.engines, a.detect)
    FIGURES.keep(found, set(a.engines) == set(PACKAGES))
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
