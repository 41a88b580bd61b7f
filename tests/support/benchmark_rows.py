"""Made-up rows in the schemas of published data sets; nothing is copied from them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from semspec.benchmarks._data import Sample


def boxed(answer: str) -> str:
    return f"<think>\nPerhaps \\boxed{{17}}.\n</think>\n\nSo it is \\boxed{{{answer}}}."


ADD = {
    "task_id": "Made/0",
    "prompt": (
        "from typing import List\n\n\ndef double(x: int) -> int:\n    return 2 * x\n\n\n"
        'def add_doubled(values: List[int]) -> int:\n    """Adds twice every value.\n'
        '    >>> add_doubled([1, 2])\n    6\n    """\n'
    ),
    "entry_point": "add_doubled",
    "canonical_solution": "    return sum(double(v) for v in values)\n",
    "test": (
        "def check(candidate):\n    assert candidate([1, 2]) == 6\n    assert candidate([]) == 0\n"
    ),
}


def code(body: str) -> str:
    return f"Here it is.\n\n```python\n{body}\n```\n"


SAMPLES = {
    "math500": Sample(
        "test.jsonl",
        [
            {
                "problem": "What is $\\frac{1}{4} + \\frac{1}{4}$?",
                "solution": "...",
                "answer": "\\frac{1}{2}",
                "subject": "Prealgebra",
                "level": 1,
                "unique_id": "made/1.json",
            },
            {"problem": "What is $2 + 2$?", "answer": "4"},
        ],
        [boxed("0.5"), boxed("\\dfrac12"), "\\boxed{2/4}"],
        [boxed("0.25"), "It is 0.5.", "<think>\n\\boxed{0.5}", ""],
        "problem",
    ),
    "aime24": Sample(
        "aime_2024_problems.parquet",
        [
            {"ID": "made-1", "Problem": "Find $6 \\cdot 7$.", "Solution": "...", "Answer": 42},
            {"ID": "made-2", "Problem": "Find $3 \\cdot 7$.", "Solution": "...", "Answer": 21},
        ],
        [boxed("042"), boxed("42")],
        [boxed("43"), boxed("4.2")],
        "Problem",
    ),
    "amc23": Sample(
        "data/test-00000-of-00001.parquet",
        [
            {"id": 0, "question": "How many legs do nine cats have?", "answer": 36.0, "url": ""},
            {"id": 1, "question": "How many tails?", "answer": 9.0, "url": ""},
        ],
        [boxed("36")],
        [boxed("35")],
        "question",
    ),
    "gsm8k": Sample(
        "main/test-00000-of-00001.parquet",
        [
            {
                "question": "A crate holds 500 pens. How many pens do three crates hold?",
                "answer": "Three crates hold 3*500 = <<3*500=1500>>1500 pens.\n#### 1,500",
            },
            {"question": "And two?", "answer": "2*500=1000\n#### 1000"},
        ],
        [boxed("1500"), boxed("1{,}500"), boxed("\\$1500")],
        [boxed("500"), "#### 1500"],
        "question",
    ),
    "gpqa": Sample(
        "gpqa_diamond.csv",
        [
            {
                "Record ID": f"made{n}",
                "Question": f"Which number follows {n}?\nA) is no option here",
                "Correct Answer": str(n + 1),
                "Incorrect Answer 1": str(n + 2),
                "Incorrect Answer 2": str(n + 3),
                "Incorrect Answer 3": str(n + 4),
                "Subdomain": "counting",
            }
            for n in range(10, 50)
        ],
        [boxed("11")],
        [boxed("12"), boxed("E"), ""],
        "Incorrect Answer 3",
    ),
    "mmlu_pro": Sample(
        "data/test-00000-of-00001.parquet",
        [
            {
                "question_id": n,
                "question": "Which of these is a bird?",
                "options": ["a cat", "a hen", "a dog", "N/A"],
                "answer": "B",
                "answer_index": 1,
                "cot_content": "",
                "category": "biology",
                "src": "made",
            }
            for n in range(20)
        ],
        [boxed("B"), "The answer is (B).", boxed("a hen")],
        [boxed("C"), boxed("D"), boxed("a cow")],
        "options",
    ),
    "humaneval": Sample(
        "openai_humaneval/test-00000-of-00001.parquet",
        [ADD, ADD | {"task_id": "Made/1"}],
        [
            code("def add_doubled(values):\n    return 2 * sum(values)"),
            code(
                "def add_doubled(values: List[int]) -> int:\n    return sum(double(v) for v in values)"
            ),
            code("    return 2 * sum(values)"),  # only the body
            "<think>\n" + code("0") + "</think>\n" + code("    return 2 * sum(values)"),
        ],
        [
            code("def add_doubled(values):\n    return sum(values)"),
            code("def add_doubled(values):\n    raise SystemExit(0)"),
            code("def add_doubled(values):\n    import os\n    os._exit(0)"),
            code("def add_doubled(values:"),
            "return 2 * sum(values)",
            "",
        ],
        "entry_point",
    ),
    "mtbench": Sample(
        "data/train-00000-of-00001.parquet",
        [
            {
                "prompt": [f"Describe the number {n}.", "Shorter, please."],
                "prompt_id": n,
                "category": "writing",
                "reference": ["It is a number."],
            }
            for n in range(3)
        ],
        needs="prompt",
    ),
    "alpaca": Sample(
        "alpaca_eval.json",
        [{"instruction": f"Name {n} fruits.", "output": "", "dataset": "made"} for n in range(3)],
        needs="instruction",
    ),
    "spec_bench": Sample(
        "question.jsonl",
        [
            {"question_id": 10 * k + n, "category": category, "turns": [f"{category} {n}?"]}
            for k, category in enumerate(
                ["writing", "math", "translation", "summarization", "qa", "math_reasoning", "rag"]
            )
            for n in range(3)
        ],
        needs="turns",
    ),
    "code_editor_bench": Sample(
        "code_debug_primary.jsonl",
        [
            {
                "idx": n,
                "incorrect_solutions": f"print({n} + int(input())",
                "code_language": "python3",
                "public_tests_input": "1",
                "public_tests_output": str(n + 1),
            }
            for n in range(3)
        ],
        needs="code_language",
        options={"tasks": ("debug",)},
    ),
}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows to a file in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
