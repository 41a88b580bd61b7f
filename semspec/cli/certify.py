"""``python -m semspec.certify``: test whether a server's output follows the model's own distribution."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semspec import registry
from semspec.certify import certificate as made
from semspec.certify import relaxed
from semspec.certify.certificate import Certificate
from semspec.certify.endpoints.base import Reference, Writer
from semspec.certify.endpoints.connect import KINDS, connect, is_url
from semspec.certify.endpoints.local import TYPES, Forward, Transformers
from semspec.certify.endpoints.openai import sampling_fields
from semspec.certify.endpoints.openvino import Graph, OpenVino, is_openvino
from semspec.certify.laws import Token
from semspec.certify.page import certificate_page, relaxed_page
from semspec.certify.prompts import read_prompts
from semspec.certify.record import REPORT, Record
from semspec.certify.sampled import Ask
from semspec.cli.command import run_command
from semspec.errors import UserError, without_passwords
from semspec.jobs.options import described, option, read
from semspec.report.html import save
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console
from semspec.storage.files import dumps, whole_lines
from semspec.storage.screen import echo
from semspec.types import Sampling

CHECKS = ("greedy", "sampled")
RELAXED = "relaxed"
OF_RELAXED = ("benchmark", "problems", "margin", "max_tokens")
FREE = ("concurrency", "json")  # may change when a certificate is resumed


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to certify, the reference to compare with, and the error rates."""

    # fmt: off
    url: str = option("", "the server: SGLang, vLLM, llama.cpp or any with OpenAI's completions API")
    path: str = option("", "instead: a local model's folder, run by transformers' generate, or by OpenVINO GenAI if it holds openvino_model.xml")
    assistant: str = option("", "with path=: the folder of a model that drafts (assisted generation)")
    lookup: int = option(0, "with path=: tokens that prompt lookup drafts", least=0, shown="")
    reference: str = option("", "a local model's folder (its forward pass), or the URL of a server without speculation; "
                            "otherwise the server's own log-probabilities of one token at a time", shown="FOLDER_OR_URL")
    kind: str = option("auto", "what the server speaks: auto, sglang, vllm, llamacpp or openai", choices=KINDS)
    model: str = option("", "the model's name on the server, if it serves several")
    tokenizer: str = option("", "a folder with the model's tokenizer, if the server has no /tokenize")
    prompts: str = option("", "a file: a prompt on every line, or JSON lines with prompt or turns")
    check: str = option("both", "greedy, sampled or both; relaxed: does it solve problems as well as reference=URL, within margin=?",
                        choices=(*CHECKS, "both", RELAXED))
    temperature: float = option(1.0, "of sampled tokens, and of answers with check=relaxed", least=0.01, most=10)
    top_p: float = option(1.0, "top-p of these; 1: all", least=0.01, most=1)
    top_k: int = option(0, "top-k of these; 0: all", least=0, shown="0")
    min_p: float = option(0.0, "min-p of these; 0: all", least=0, most=1, shown="0")
    tokens: int = option(8, "tokens of one sampled outcome: give more than the server drafts at a time", least=1, most=64)
    detect: float = option(0.1, "the smallest total variation distance to find", least=0.001, most=0.9)
    alpha: float = option(0.01, "chance that an honest server is called faulty", least=1e-6, most=0.2)
    power: float = option(0.9, "chance that such a fault is found", least=0.5, most=0.999)
    budget: int = option(200_000, "most tokens to sample", least=1)
    length: int = option(64, "tokens of a greedy text", least=1, most=4096)
    tie: float = option(0.1, "a greedy token at most this much less likely than the best (in nats) counts as a rounding tie", least=0)
    benchmark: str = option("synthetic", "with check=relaxed: the benchmark, named as in a run's benchmark=")
    problems: int = option(200, "with check=relaxed: how many problems", least=1)
    margin: float = option(0.03, "with check=relaxed: differences within it count as equal: 0.03 is 3 points, or 3 % of lengths", least=0.001, most=0.5)
    max_tokens: int = option(0, "with check=relaxed: most tokens of an answer; 0: the server's limit", least=0, shown="0")
    dtype: str = option("float32", "of local models: float32, bfloat16 or float16", choices=TYPES)
    concurrency: int = option(8, "requests in flight at a time", least=1, most=512)
    seed: int = option(0, "random seed of local models", shown="0")
    out: str = option("", "the certificate's folder; the same folder again resumes", shown="runs/certify_DATE")
    json: bool = option(False, "print the certificate as JSON instead of sentences")
    # fmt: on


HELP = f"""\
usage: python -m semspec.certify url=http://HOST:PORT [reference=FOLDER_OR_URL] [...]
       python -m semspec.certify path=FOLDER [assistant=FOLDER | lookup=10] [...]

Tests whether a server with speculative decoding still writes the model's own output: greedy texts token for token, and
sampled tokens by tests with a bounded error rate and a stated power. Stops as soon as the verdict is certain, or at the
budget. check=relaxed is for rules that change texts on purpose: both servers solve the same problems, and pass@1,
lengths, cut-off answers and agreement are tested for equivalence within a margin. Writes certificate.json and
report.html; exit code 1 if it finds a fault, or a difference beyond the margin.

{described(Options)}
"""


def run(arguments: Sequence[str]) -> None:
    given = read(Options, arguments, "semspec.certify")
    _check(given)
    name = f"certify_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    folder = Path(given.out).expanduser() if given.out else Path("runs") / name
    if given.check == RELAXED:
        _relaxed(given, folder)
        return
    prompts = read_prompts(given.prompts)
    console = open_console(quiet=given.json)
    with ExitStack() as held:
        writer, reference, other = _sides(given, _seed(given, folder), held)
        record = _record(given, folder, console, held, {"prompts": prompts})
        found = made.make(
            writer, reference, other, prompts, _ask(given), record, Steps(console, given.json),
            checks=CHECKS if given.check == "both" else (given.check,),
            length=given.length, tie=given.tie,
        )  # fmt: skip
        record.finish(made.as_json(found))
        save(folder / REPORT, certificate_page(found))
    _tell(given, found, folder)
    if found.verdict == "faulty":
        sys.exit(1)


def _record(
    given: Options, folder: Path, console: Screen, held: ExitStack, more: Mapping[str, Any]
) -> Record:
    """Open the certificate's folder and print how to resume it."""
    left = (*FREE, "out", *(OF_RELAXED if given.check != RELAXED else ()))
    stored = {k: v for k, v in asdict(given).items() if k not in left}
    record = Record(folder, {**stored, **more})
    held.callback(record.close)
    console.say(f"certificate: {folder} (the same command with out={folder} resumes)", "dim")
    return record


def _relaxed(given: Options, folder: Path) -> None:
    """Compare a server with a relaxed rule to one without it."""
    console = open_console(quiet=given.json)
    benchmark = registry.plugin("benchmark", given.benchmark).cls()
    with ExitStack() as held:
        server, reference = (_chat(given, url, held) for url in (given.url, given.reference))
        record = _record(given, folder, console, held, {})
        asked = (benchmark, given.benchmark, given.problems, given.margin)
        found = relaxed.make(server, reference, *asked, record, Steps(console, given.json))
        record.finish(relaxed.as_json(found))
        save(folder / REPORT, relaxed_page(found))
    _show(given, relaxed.as_json(found), folder)
    if found.verdict == "beyond the margin":
        sys.exit(1)


def _chat(given: Options, url: str, held: ExitStack) -> relaxed.Chat:
    options: dict[str, Any] = {"kind": "openai", "concurrency": given.concurrency}
    server = connect(url, given.model, **options)
    held.callback(server.close)
    fields: dict[str, Any] = sampling_fields(_ask(given).sampling)
    if given.max_tokens:
        fields["max_tokens"] = given.max_tokens
    return relaxed.Chat(server.client, server.model, fields)


def _tell(given: Options, found: Certificate, folder: Path) -> None:
    _show(given, made.as_json(found), folder)


def _show(given: Options, told: Mapping[str, Any], folder: Path) -> None:
    if given.json:
        echo(dumps(told, indent=2))
        return
    for line in told["sentences"]:
        echo(line, newline=" ")
    echo(f"report: {folder / REPORT}", newline=" ")


def _check(given: Options) -> None:
    if bool(given.url) == bool(given.path):
        raise UserError(
            "give either url=http://HOST:PORT or path=FOLDER; see python -m semspec.certify --help"
        )
    if not given.path and (given.assistant or given.lookup):
        raise UserError(
            "assistant= and lookup= belong to path=, because a server's drafting is set when"
            " it starts: leave them out"
        )
    if given.check == RELAXED and not (given.url and is_url(given.reference)):
        raise UserError(
            "check=relaxed compares two servers: give url=http://HOST:PORT and reference=http://HOST:PORT, the same"
            " model without the relaxed rule"
        )
    if given.assistant and given.lookup:
        raise UserError("give either assistant= or lookup=, not both")


def _ask(given: Options) -> Ask:
    sampling = Sampling(given.temperature, given.top_k, given.top_p, given.min_p)
    return Ask(
        sampling=sampling, length=given.tokens, alpha=given.alpha, power=given.power,
        detect=given.detect, budget=given.budget,
    )  # fmt: skip


def _seed(given: Options, folder: Path) -> int:
    """Return a seed that depends on how much is drawn already, so that a resumed start does not draw it again."""
    return given.seed + sum(1 for _ in whole_lines(folder / "samples.jsonl"))


def _sides(
    given: Options, seed: int, held: ExitStack
) -> tuple[Writer, Reference | None, Writer | None]:
    """Return the writer to certify, and either a forward pass or another writer as its reference."""
    options: dict[str, Any] = {"kind": given.kind, "concurrency": given.concurrency}
    writer: Writer
    own: Reference
    ends: frozenset[Token] = frozenset()
    by_text = False
    if given.path:
        writer, own = _local(given, seed)
    else:
        server = connect(
            given.url, given.model, given.tokenizer or _folder(given.reference), **options
        )
        writer, own, ends, by_text = server, server, server.ends, server.kind == "openai"
    held.callback(writer.close)
    if not given.reference:
        return writer, own, None
    if not is_url(given.reference):
        if by_text:
            raise UserError(
                f"{without_passwords(given.url)} returns text only, and a folder's forward pass needs token ids:"
                " give kind=vllm if the server takes and returns them, or a server as reference="
            )
        return writer, Forward(given.reference, given.dtype, ends=ends), None
    other = connect(given.reference, given.model, given.tokenizer or given.path, **options)
    held.callback(other.close)
    return writer, None, other


def _local(given: Options, seed: int) -> tuple[Writer, Reference]:
    """Return an engine in this process, and a plain forward pass of the same model."""
    asked = (given.path, given.dtype, given.assistant, given.lookup, seed)
    if is_openvino(given.path):
        return OpenVino(*asked), Forward(given.path, given.dtype, Graph(given.path, given.dtype))
    local = Transformers(*asked)
    return local, Forward(given.path, given.dtype, local.model)


def _folder(reference: str) -> str:
    return "" if is_url(reference) else reference


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, bare=False)
