"""Other projects' evaluation and load-testing clients work against a live server, and their numbers match ours.

These tests run in .venv; each client runs in a process with its own environment (``make test-clients``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import sglang_env
from tests.support.pair import TARGET
from tests.support.serving import Live, serving

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, LOADS, SGLANG = (ROOT / name / "bin" for name in (".venv-clients", ".venv-aiperf", ".venv-sglang"))  # fmt: skip
NAME = "embedded/tiny-target"
QUESTIONS = (
    ("Modulo 100, let x=76, k is x - 2. Find k.", "74"),
    ("Modulo 100, let a=5, b is a + 9, c is b + 3. Find c.", "17"),
    ("Modulo 100, let q=41, z is q + 7. Find z.", "48"),
)
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
WRITTEN, READ = "semspec:generation_tokens_total", "semspec:prompt_tokens_total"
COUNTERS = (DRAFTS, DRAFTED, ACCEPTED, WRITTEN, READ)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    # of fixed lengths: after the texts of benchmarks, for which drafts are no use, hardly any would be made
    with serving("max_new_tokens=160", "concurrency=4", "adaptive=false") as running:
        yield running


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"question": question, "answer": answer} for question, answer in QUESTIONS]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def run(folder: Path, *command: object, **environment: str) -> str:
    """Run a client; return what it prints."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SEMSPEC_DEEP")}
    kept |= {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def counters(live: Live) -> dict[str, float]:
    return {name: live.metric(name) for name in COUNTERS}


def counted(live: Live, before: Mapping[str, float]) -> dict[str, float]:
    """Return what the counters have grown by."""
    return {name: value - before[name] for name, value in counters(live).items()}


def answered(live: Live, seen: int) -> list[dict[str, Any]]:
    """Return the lines of the log about answers, but for those seen before; all of them are well."""
    lines = [line for line in live.lines() if line["event"] in ("answer", "refusal")][seen:]
    assert lines and all(line.get("outcome") == "ok" for line in lines), lines
    return lines


def seen(live: Live) -> int:
    return sum(line["event"] in ("answer", "refusal") for line in live.lines())


def own(live: Live, question: str) -> Any:
    """Return our own answer to a question as the evaluations ask it."""
    turn = [{"role": "user", "content": question}]
    return live.chat(messages=turn, temperature=0, seed=1234)


# ---- evaluations ---------------------------------------------------------------------------------


def test_lm_eval_scores_the_answers_that_we_give(
    live: Live, questions: Path, tmp_path: Path
) -> None:
    task = {
        "task": "modular",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(questions)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["</s>"], "max_gen_toks": 160, "temperature": 0},
        "filter_list": [
            {
                "name": "number",
                "filter": [
                    {"function": "regex", "regex_pattern": r"boxed\{(\d+)"},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "modular.yaml").write_text(json.dumps(task))  # JSON is YAML
    model = f"base_url={live.url}/v1/chat/completions,model={NAME},num_concurrent=3,max_retries=1"
    command = [CLIENTS / "python", "-m", "lm_eval", "run", "--model", "local-chat-completions", "--model_args", model]  # fmt: skip
    command += ["--tasks", "modular", "--include_path", tmp_path / "tasks", "--apply_chat_template"]
    run(tmp_path, *command, "--log_samples", "--output_path", tmp_path / "out")
    (samples,) = (tmp_path / "out").rglob("samples_modular_*.jsonl")
    (results,) = (tmp_path / "out").rglob("results_*.json")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == len(QUESTIONS)
    right = []
    for row in rows:
        content = own(live, row["doc"]["question"])["choices"][0]["message"]["content"]
        assert row["resps"] == [[content]]
        right.append(f"boxed{{{row['doc']['answer']}}}" in content)
    score = json.loads(results.read_text())["results"]["modular"]["exact_match,number"]
    assert score == pytest.approx(sum(right) / len(right)) and 0 < score


def test_inspect_tells_thinking_and_answer_apart_and_counts_our_tokens(
    live: Live, questions: Path, tmp_path: Path
) -> None:
    before = counters(live)
    script = Path(__file__).with_name("inspect_task.py")
    told = run(tmp_path, CLIENTS / "python", script, questions, live.url, tmp_path / "logs")
    grown = counted(live, before)
    found = json.loads(told.strip().splitlines()[-1])
    assert len(found["answers"]) == len(QUESTIONS)
    thought = 0
    for question, reasoning, text in found["answers"]:
        ours = own(live, question)
        message = ours["choices"][0]["message"]
        assert (reasoning, text) == ([message["reasoning_content"]], message["content"])
        thought += ours["usage"]["completion_tokens_details"]["reasoning_tokens"]
    usage = found["usage"]
    assert usage["output_tokens"] == grown[WRITTEN]
    assert usage["input_tokens"] + (usage["input_tokens_cache_read"] or 0) == grown[READ]
    assert usage["reasoning_tokens"] == thought
    assert 0 < found["accuracy"] <= 1


# ---- loads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sglang-oai-chat", "sglang-oai"])
def test_sglangs_benchmark_counts_our_tokens_and_shows_our_acceptance(
    live: Live, tmp_path: Path, backend: str
) -> None:
    before, first = counters(live), seen(live)
    command = [SGLANG / "python", "-m", "sglang.benchmark.serving", "--backend", backend]
    command += ["--base-url", live.url, "--tokenizer", TARGET, "--dataset-name", "random-ids"]
    command += ["--num-prompts", 6, "--random-input-len", 40, "--random-output-len", 30]
    command += ["--random-range-ratio", 0.5, "--max-concurrency", 3, "--warmup-requests", 0]
    command += ["--output-file", "out.jsonl", "--output-details", "--disable-tqdm"]
    shim = {**sglang_env.VARIABLES, "PYTHONPATH": str(sglang_env.SHIM)}
    shown = run(tmp_path, *command, **shim)
    grown, lines = counted(live, before), answered(live, first)
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert told["completed"] == len(lines) == 6
    assert told["total_output_tokens"] == grown[WRITTEN]
    assert told["output_lens"] and sorted(told["output_lens"]) == sorted(
        line["completion_tokens"] for line in lines
    )
    # of everything since the server began, as SGLang's own servers count it
    length = 1 + live.metric(ACCEPTED) / live.metric(DRAFTS)
    assert told["accept_length"] == pytest.approx(length)
    assert re.search(rf"Accept length: +{length:.2f}\b", shown)


def test_guidellm_counts_our_tokens(live: Live, tmp_path: Path) -> None:
    before, first = counters(live), seen(live)
    command = [CLIENTS / "python", "-m", "guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={live.url},model={NAME}"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"]  # fmt: skip
    command += ["--tokenizer", f"kind=hf_auto,model={TARGET}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=24"]
    run(tmp_path, *command, "--output", "kind=json,path=out.json")
    grown, lines = counted(live, before), answered(live, first)
    (told,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert told["metrics"]["request_totals"]["successful"] == len(lines) == 4
    assert told["metrics"]["request_totals"]["errored"] == 0
    asked = told["requests"]["successful"]
    assert sum(one["output_tokens"] for one in asked) == grown[WRITTEN] == 4 * 24
    assert sum(one["prompt_tokens"] for one in asked) == grown[READ]


def test_aiperf_shows_the_acceptance_that_we_count(
    live: Live, questions: Path, tmp_path: Path
) -> None:
    """aiperf checks the figures of speculation, and leaves out those that do not reconcile."""
    before, first = counters(live), seen(live)
    rows = "".join(f"{json.dumps({'text': question})}\n" for question, _ in QUESTIONS * 2)
    (tmp_path / "inputs.jsonl").write_text(rows)
    command = [LOADS / "python", "-m", "aiperf", "profile", "--model", NAME, "--url", live.url]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", TARGET, "--ui", "none"]
    command += ["--request-count", 6, "--concurrency", 2, "--output-tokens-mean", 100]
    command += ["--input-file", "inputs.jsonl", "--custom-dataset-type", "single_turn"]
    # with HF_HUB_OFFLINE it looks for a tokenizer in the Hub's cache alone
    run(tmp_path, *command, "--artifact-dir", tmp_path / "out", HF_HUB_OFFLINE="")
    grown, lines = counted(live, before), answered(live, first)
    told = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    average = {name: one["avg"] for name, one in told.items() if isinstance(one, dict) and "avg" in one}  # fmt: skip
    assert average["request_count"] == len(lines) == 6
    assert average["total_usage_completion_tokens"] == grown[WRITTEN]
    assert average["total_usage_prompt_tokens"] == grown[READ]
    assert average["total_spec_decode_steps"] == grown[DRAFTS] > 0
    assert average["total_draft_tokens"] == grown[DRAFTED]
    assert average["total_accepted_draft_tokens"] == grown[ACCEPTED] > 0
    assert average["spec_decode_overall_draft_acceptance_rate"] == pytest.approx(
        100 * grown[ACCEPTED] / grown[DRAFTED]
    )


def test_evalscope_counts_our_tokens(live: Live, questions: Path, tmp_path: Path) -> None:
    before, first = counters(live), seen(live)
    command = [LOADS / "evalscope", "perf", "--model", NAME, "--api", "openai", "--stream"]
    command += ["--url", f"{live.url}/v1/chat/completions", "--tokenizer-path", TARGET]
    command += ["--dataset", "openqa", "--dataset-path", questions, "--max-tokens", 60]
    command += ["--number", 6, "--parallel", 2, "--no-test-connection", "--no-timestamp"]
    run(tmp_path, *command, "--outputs-dir", tmp_path / "out")
    grown, lines = counted(live, before), answered(live, first)
    (summary,) = (tmp_path / "out").rglob("benchmark_summary.json")
    told = json.loads(summary.read_text())
    assert told["Success Requests"] == told["Stream Requests"] == len(lines) == 6
    assert told["Failed Requests"] == 0
    assert told["Avg Output Tokens"] * 6 == pytest.approx(grown[WRITTEN], abs=0.1)
    assert told["Avg Input Tokens"] * 6 == pytest.approx(grown[READ], abs=0.1)
