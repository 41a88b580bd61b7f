"""Behaviour of single benchmarks beyond the common contract."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from semspec import registry
from semspec.benchmarks import _confine
from semspec.benchmarks._confine import run_program
from semspec.benchmarks._data import choice_question, options_of
from semspec.benchmarks.humaneval import written_code
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from tests.support.benchmark_rows import SAMPLES, write_rows


def make(name: str, **options: Any) -> Any:
    return registry.plugin("benchmark", name).cls(**options)


# ---- code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "Here:\n```python\nx = 1\n```\nDone.",
        "```py\nx = 1\n```",
        "```\nx = 1\n```",
        "```python3\nx = 1\n```",
        "``` Python3.11 \nx = 1\n```",
        '```python title="a.py"\nx = 1\n```',
        "```python\r\nx = 1\r\n```\r\n",
        "```python\ny = 2\n```\nBetter:\n```python3\nx = 1\n```",
        "First:\n```bash\npip install x\n```\nthen\n```python\nx = 1\n```\nand:\n```bash\nls\n```",
    ],
)
def test_code_is_found_however_its_block_is_headed(answer: str) -> None:
    found = written_code(answer, "solve")
    assert found is not None and found[1] == "x = 1\n"


@pytest.mark.parametrize("answer", ["x = 1", "```bash\nls", "```python x = 1```", "```pytest\nx"])
def test_only_a_block_of_python_is_code(answer: str) -> None:
    assert written_code(answer, "solve") is None


SOLVE = "```python\ndef solve(x):\n    return x\n```\n"
OTHER = "```python\ndef solve(x):\n    return 2 * x\n```\n"


@pytest.mark.parametrize(
    "answer",
    [
        SOLVE + "It is used like this:\n```python\nprint(solve(1))\n```\nand says\n```\n1\n```\n",
        SOLVE + "```python\ndef solve_all(xs):\n    return [solve(x) for x in xs]\n```\n",
        SOLVE + "```python\ncheck(solve)  # where def solve(x): is above\n```\n",
        OTHER + "No:\n" + SOLVE,
        SOLVE.removesuffix("```\n"),  # the end of the text ends it, too
        "```python\nimport math\n```\n" + SOLVE.removesuffix("```\n"),
        SOLVE + "Or rather:\n" + OTHER.removesuffix("* x\n```\n"),  # the last one that is whole
    ],
)
def test_the_block_with_the_function_is_the_answer(answer: str) -> None:
    found = written_code(answer, "solve")
    assert found is not None and found[1] == "def solve(x):\n    return x\n"


def test_a_function_is_graded_with_what_surrounds_it(tmp_path: Path) -> None:
    benchmark = make(
        "humaneval", data=str(write_rows(tmp_path / "h.jsonl", SAMPLES["humaneval"].rows))
    )
    problem = next(iter(benchmark.problems()))

    def right(*blocks: str) -> bool:
        text = "\n".join(f"```python\n{block}\n```" for block in blocks)
        return bool(benchmark.grade(problem, text).correct)

    good = "def add_doubled(values):\n    return 2 * sum(values)"
    bad = "def add_doubled(values):\n    return sum(values)"
    assert right(good, "print(add_doubled([1, 2]))")
    assert right(good, "assert add_doubled([1, 2]) == 7")  # an example of the wrong result
    assert not right(bad, "print(add_doubled([1, 2]))")
    assert right(bad, good) and not right(good, bad)
    helped = "def add_doubled(values):\n    return reduce(add, values, 0) * FACTOR"
    helpers = "from functools import reduce\nFACTOR = 2\ndef add(a, b):\n    return a + b"
    assert right(helpers, helped)
    assert right(helpers, helped, "print(add_doubled([1, 2]))")
    assert not right(helped)
    assert not right(helpers, helped.replace("FACTOR", "3"))
    assert right("from __future__ import annotations\n\n" + good), "the head may have imports, too"
    with_head = json.loads(problem.answer or "")
    with_head["head"] = "import math\n\n\n" + with_head["head"]
    problem = replace(problem, answer=json.dumps(with_head))
    assert right("from __future__ import annotations\nimport os\n\n" + good)
    within_a_list = good.replace("\n", "\n   ")
    text = f"1. The function:\n\n   ```python\n   {within_a_list}\n   ```\n"
    assert benchmark.grade(problem, text).correct
    assert right("raise ValueError('an example')", good), "what is not needed is not run"


# ---- examples and system messages -----------------------------------------------------------------

TRAIN = [
    {"question": "2 + 3?", "answer": "Two and three are <<2+3=5>>5.\n#### 5"},
    {"question": "1,000 + 1?", "answer": "That is 1000+1=<<1000+1=1001>>1001.\n#### 1,001"},
    {"question": "Unused?", "answer": "Yes.\n#### 0"},
]


@pytest.mark.parametrize("given", ["folder", "file"])
def test_gsm8k_begins_with_the_first_examples_of_its_train_split(
    tmp_path: Path, given: str
) -> None:
    test = write_rows(tmp_path / "test.jsonl", SAMPLES["gsm8k"].rows)
    write_rows(tmp_path / "train.jsonl", TRAIN)
    data = str(tmp_path if given == "folder" else test)
    benchmark = make("gsm8k", data=data, shots=2, system="Be brief.")
    first, second = benchmark.problems()
    assert first.question == (
        "Please reason step by step, and put your final answer within \\boxed{}.\n\n"
        "Question: 2 + 3?\nLet's think step by step\nAnswer: Two and three are 5.\n"
        "The answer is \\boxed{5}.\n\n"
        "Question: 1,000 + 1?\nLet's think step by step\nAnswer: That is 1000+1=1001.\n"
        "The answer is \\boxed{1001}.\n\n"
        "Question: A crate holds 500 pens. How many pens do three crates hold?\n"
        "Let's think step by step\nAnswer:"
    )
    assert (first.id, first.answer, first.system) == ("gsm8k-0001", "1500", "Be brief.")
    assert second.question.endswith("Question: And two?\nLet's think step by step\nAnswer:")
    assert benchmark.grade(first, "So it is \\boxed{1500}.").correct
    plain = next(iter(make("gsm8k", data=data).problems()))
    assert plain.system is None and not plain.question.startswith("Please")


def test_gsm8k_never_takes_its_examples_from_the_problems_that_it_asks(tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.jsonl", SAMPLES["gsm8k"].rows)
    with pytest.raises(UserError, match=r"train split, and 0 were found: put train\.jsonl beside"):
        list(make("gsm8k", data=str(test), shots=1).problems())
    write_rows(tmp_path / "train.jsonl", TRAIN)
    with pytest.raises(UserError, match="3 were found"):
        list(make("gsm8k", data=str(test), shots=4).problems())
    with pytest.raises(UserError, match=r"shots=-1: give 0 or more"):
        make("gsm8k", shots=-1)


# ---- multiple choice ------------------------------------------------------------------------------


def test_gpqas_right_answer_is_at_every_letter_and_the_seed_decides_where(
    tmp_path: Path,
) -> None:
    data = str(write_rows(tmp_path / "gpqa_diamond.csv", SAMPLES["gpqa"].rows))
    problems = list(make("gpqa", data=data).problems())
    letters = Counter(p.answer for p in problems)
    assert set(letters) == set("ABCD")
    assert max(letters.values()) < 20  # of 40
    for problem, row in zip(problems, SAMPLES["gpqa"].rows, strict=True):
        options = options_of(problem.question)
        assert options["ABCD".index(problem.answer or "")] == row["Correct Answer"]
        assert len(set(options)) == 4
    other = [p.answer for p in make("gpqa", data=data, seed=1).problems()]
    assert other != [p.answer for p in problems]
    # what a problem asks does not depend on which problems are asked
    mixed = {p.id: p for p in make("gpqa", data=data, order=3).problems()}
    assert [mixed[p.id] for p in problems] == problems


def test_options_are_read_back_as_they_were_written() -> None:
    options = ["first\nin two lines", "B) or not B)", "$\\frac{1}{2}$", "last"]
    assert options_of(choice_question("Which?\n\nA) is a letter.", options)) == options


# ---- code -----------------------------------------------------------------------------------------

REFUSED = [
    "import socket; socket.socket()",
    "import socket; socket.create_connection(('127.0.0.1', 1))",
    "import os; os.fork()",
    "import subprocess; subprocess.run(['true'])",
    "import os; os.execv('/bin/true', ['true'])",
    "import os; os.kill(os.getppid(), 0)",
    "open('here.txt', 'w')",
    "import os; os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "import os; os.mkdir('/tmp/made-by-a-candidate')",
    "import ctypes; assert ctypes.CDLL(None).syscall(41, 2, 1, 0) >= 0",  # socket(2), by number
    "import threading; threading.Thread(target=print).start()",
]


@pytest.mark.parametrize("program", REFUSED)
def test_the_kernel_refuses_all_but_computing(program: str) -> None:
    assert run_program(program, 5) != "passed"


def test_programs_may_compute_and_read() -> None:
    assert run_program("import math, re, json, collections\nassert math.gcd(12, 18) == 6", 5) == (
        "passed"
    )
    assert run_program(f"assert 'def' in open({os.__file__!r}).read()", 5) == "passed"
    assert run_program("print('x' * 1000000)", 5) == "passed"


def test_the_refusals_come_from_the_filter(tmp_path: Path) -> None:
    # the same programs go through without it: the tests above would not pass for another reason
    for program in REFUSED[:1] + REFUSED[5:6]:
        assert run_program(program, 5, strict=False) == "passed"


def test_files_cannot_be_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    program = f"import os; os.unlink({str(kept)!r})"
    assert run_program(program, 5).startswith("PermissionError")
    assert kept.exists()
    assert run_program(program, 5, strict=False) == "passed"
    assert not kept.exists()


def test_time_and_memory_are_limited() -> None:
    assert run_program("while True: pass", 1).startswith("timed out")
    assert run_program("import time; time.sleep(30)", 1).startswith("timed out")
    assert run_program("x = bytearray(4 << 30)", 5).startswith("MemoryError")
    assert run_program("x = bytearray(4 << 30)", 5, strict=False).startswith("MemoryError")


def test_ending_early_is_not_passing() -> None:
    assert run_program("raise SystemExit(0)", 5).startswith("SystemExit")
    assert run_program("import os; os._exit(0)", 5).startswith("died")


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ((('"x86_64"', '"x"'), ('"aarch64"', '"y"')), r"linux on \w+"),
        ((("CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444", "CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 999"),),
         "Landlock: Function not implemented"),
    ],
)  # fmt: skip
def test_a_system_that_cannot_confine_runs_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacking: tuple[tuple[str, str], ...],
    reason: str,
) -> None:
    source = _confine.CANDIDATE.read_text()
    for there, instead in lacking:
        assert there in source
        source = source.replace(there, instead)
    elsewhere = tmp_path / "candidate.py"
    elsewhere.write_text(source)
    monkeypatch.setattr(_confine, "CANDIDATE", elsewhere)
    with pytest.raises(
        UserError, match=rf"\({reason}\), so semspec runs none: give benchmark\.confine="
    ):
        run_program("pass", 5)
    assert run_program("pass", 5, strict=False) == "passed"


def test_a_candidate_sees_no_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "1")
    assert os.environ["A_SECRET"] == "1"
    assert run_program("import os; assert 'A_SECRET' not in os.environ", 5) == "passed"


# ---- several tasks --------------------------------------------------------------------------------


def test_spec_bench_takes_its_tasks_in_turn(tmp_path: Path) -> None:
    data = str(write_rows(tmp_path / "question.jsonl", SAMPLES["spec_bench"].rows))
    first = [p.id.partition("-")[0] for p in make("spec_bench", data=data).problems()][:6]
    assert first == ["writing", "translation", "summarization", "qa", "math_reasoning", "rag"]
    only = list(make("spec_bench", data=data, tasks=("rag",)).problems())
    assert [p.question for p in only] == ["rag 0?", "rag 1?", "rag 2?"]
    with pytest.raises(UserError, match="choose from mt_bench"):
        make("spec_bench", tasks=("poems",))


def test_code_editor_bench_words_each_task_differently(tmp_path: Path) -> None:
    test = {"public_tests_input": "1 2", "public_tests_output": "3"}
    write_rows(
        tmp_path / "code_translate_plus.jsonl",
        [{"source_code": "puts 1", "source_lang": "ruby", "target_lang": "python", **test}],
    )
    write_rows(tmp_path / "code_polishment_plus.jsonl", [{"source_code": "slow()", **test}])
    switch = {f"public_{k}_tests_{v}": f"{k} {v}" for k in ("similar", "target") for v in
              ("input", "output")}  # fmt: skip
    write_rows(tmp_path / "code_switch_plus.jsonl", [{"similar_source_code": "old()", **switch}])
    tasks = ("polish", "switch", "translate")
    found = [*make("code_editor_bench", data=str(tmp_path), part="plus", tasks=tasks).problems()]
    asked = [p.question for p in found]
    assert [list(p.references) for p in found] == [["slow()"], ["old()"], ["puts 1"]]
    assert len(asked) == 3
    for question, words in zip(
        asked, (["faster", "slow()"], ["old()", "target output"], ["ruby to python"]), strict=True
    ):
        assert all(word in question for word in words)
    with pytest.raises(UserError, match=r"contains no code_debug_plus\.jsonl"):
        list(make("code_editor_bench", data=str(tmp_path), part="plus").problems())


def test_a_column_gives_what_answers_may_repeat(tmp_path: Path) -> None:
    texts: list[Any] = ["the old text", ["one", "", "two"], [], None]
    lines = [{"instruction": "Edit it.", "references": given} for given in texts]
    data = write_rows(tmp_path / "a.jsonl", [*lines, {"instruction": "Write."}])
    found = [list(p.references) for p in make("alpaca", data=str(data)).problems()]
    assert found == [["the old text"], ["one", "two"], [], [], []]
    data = write_rows(tmp_path / "b.jsonl", [{"instruction": "Edit it.", "references": [3]}])
    with pytest.raises(UserError, match=r"b\.jsonl.* references must be a text or a list of texts"):
        list(make("alpaca", data=str(data)).problems())


# ---- a judge --------------------------------------------------------------------------------------


@contextmanager
def judge(answer: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with OpenAI's protocol; what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(json.loads(body) | {"path": self.path})
            said = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


QUESTION = BenchmarkProblem("q", "Why is the sky blue?", "Scattering.")


def test_a_judge_rates_the_text_after_the_thinking() -> None:
    with judge("Well said, though short. [[1]] no: [[7.5]]") as (url, asked):
        grade = make("mtbench", judge=url, judge_model="big").grade(
            QUESTION, "<think>\nHm.\n</think>\n\nLight is scattered."
        )
    assert grade.correct is None
    assert grade.details == {"rating": 7.5}
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["model"] == "big"
    told = asked[0]["messages"][0]["content"]
    assert "Why is the sky blue?" in told and "Light is scattered." in told
    assert "Scattering." in told and "Hm." not in told


def test_a_judge_without_a_rating_is_counted_and_a_missing_judge_is_refused() -> None:
    with judge("I would rather not.") as (url, _):
        assert make("alpaca", judge=url).grade(QUESTION, "Because.").details == {"unrated": 1}
    with pytest.raises(UserError, match=r"start it, or leave out benchmark\.judge"):
        make("alpaca", judge=url).grade(QUESTION, "Because.")
