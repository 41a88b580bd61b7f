"""Questions asked within an open turn, by the chat templates of several families."""

from __future__ import annotations

from pathlib import Path

import pytest

from semspec.errors import UserError
from semspec.models.text import Text
from tests.support import tokenizers as small
from tests.support.pair import TARGET

# the ways of the families' own templates with turns, in few lines each
R1 = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- if m['role'] == 'user' -%}{{- '<｜User｜>' + m['content'] -}}{%- endif -%}
{%- if m['role'] == 'assistant' -%}
{%- set content = m['content'] -%}
{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}
"""
QWEN3 = """\
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and loop.index0 > ns.last -%}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + m.content + '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
LLAMA_MARKS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
LLAMA = """\
{{- bos_token -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
"""
ASKED, SCORE = "Is it right?", "The score is"


def made(folder: Path, family: str) -> Text:
    if family == "tiny":
        return Text(str(TARGET))
    marks, template, eos, bos = {
        "qwq": (small.QWQ, small.QWQ_TEMPLATE, "<|im_end|>", None),
        "r1": (small.R1, R1, small.R1[0], small.R1[3]),
        "qwen3": (small.QWQ, QWEN3, "<|im_end|>", None),
        "llama": (LLAMA_MARKS, LLAMA, "<|eot_id|>", LLAMA_MARKS[0]),
    }[family]
    return Text(small.save(folder, small.bpe(), marks, template, eos, bos))


CHATML = f"<|im_end|>\n<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n<think>\n"
EXPECTED = {
    "tiny": CHATML,
    "qwq": CHATML,
    "qwen3": CHATML,  # it opens its thinking itself: here it is opened for it
    "r1": f"<｜end▁of▁sentence｜><｜User｜>{ASKED}<｜Assistant｜><think>\n",
    "llama": f"<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{ASKED}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}


@pytest.mark.parametrize("family", EXPECTED)
def test_the_turn_is_closed_and_the_reply_begun(tmp_path: Path, family: str) -> None:
    text = made(tmp_path, family)
    written, ids = text.aside(ASKED, SCORE)
    assert written == EXPECTED[family] + SCORE
    assert text.decode(ids) == written
    assert ids[0] in text.stop_ids, "the running turn ends with a token of its own"
    assert text.aside(ASKED, SCORE) == (written, ids)
    assert text.aside("Why?", "So")[0].endswith("So")


def test_a_template_that_drops_earlier_turns_is_refused(tmp_path: Path) -> None:
    last = "{{- messages[-1]['content'] + '<|im_start|>' -}}"
    text = Text(small.save(tmp_path, small.bpe(), small.QWQ, last, "<|im_end|>"))
    with pytest.raises(UserError, match="drops earlier turns"):
        text.aside(ASKED, SCORE)


def test_a_template_that_raises_is_refused(tmp_path: Path) -> None:
    no = "{{- raise_exception('one turn only') -}}"
    text = Text(small.save(tmp_path, small.bpe(), small.QWQ, no, "<|im_end|>"))
    with pytest.raises(UserError, match=r"one turn only.*correct"):
        text.aside(ASKED, SCORE)


def test_a_missing_template_is_refused(tmp_path: Path) -> None:
    text = Text(small.save(tmp_path, small.bpe(), ["<e>"], None, "<e>"))
    with pytest.raises(UserError, match="no chat template"):
        text.aside(ASKED, SCORE)
