"""ChatML chat templates with tool calls in the forms of the presets' models, and some without tools."""

from __future__ import annotations

_SYSTEM = """\
{%- if tools %}{{- '<|im_start|>system\\nTools:' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
"""
_PLAIN = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
_END = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"

# QwQ and Qwen3: text, then the calls; results of one turn together
HERMES = (
    _SYSTEM
    + """\
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif message.tool_calls %}
{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- else %}"""
    + _PLAIN
    + "{%- endif %}{%- endfor %}"
    + _END
)
# Llama 3.1: one call and nothing else
LLAMA = (
    _SYSTEM
    + """\
{%- for message in messages %}
{%- if message.role == 'tool' %}{{- '<|im_start|>ipython\\n' + message.content | tojson + '<|im_end|>\\n' }}
{%- elif 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|im_start|>assistant\\n{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|im_end|>\\n' }}
{%- else %}"""
    + _PLAIN
    + "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# DeepSeek-R1: calls only if the content is none; arguments as text
DEEPSEEK = (
    _SYSTEM
    + """\
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
{%- elif message.role == 'assistant' and message.content is none %}
{{- '<|im_start|>assistant\\n<｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls %}{%- if not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' + call.function.arguments }}
{{- '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}{{- '<｜tool▁calls▁end｜><|im_end|>\\n' }}
{%- else %}"""
    + _PLAIN
    + "{%- endif %}{%- endfor %}"
    + _END
)
OF_FORMS = {"hermes": HERMES, "llama": LLAMA, "deepseek": DEEPSEEK}
# shows tools, but writes calls in no known form
UNKNOWN = (
    _SYSTEM
    + """\
{%- for message in messages %}
{%- if message.tool_calls %}{{- '<|im_start|>assistant\\n' }}
{%- for call in message.tool_calls %}{{- call.function.name + '(' + call.function.arguments | string + ')' }}{%- endfor %}
{%- else %}"""
    + _PLAIN
    + "{%- endif %}{%- endfor %}"
    + _END
)
NONE = "{%- for message in messages %}" + _PLAIN + "{%- endfor %}" + _END

SUBTRACT = {
    "type": "function",
    "function": {
        "name": "subtract",
        "description": "Subtracts b from a.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
