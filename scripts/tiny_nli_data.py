"""Pairs of steps for the tiny entailment model: made from the world, and sampled from a model.

A pair is two steps after the same context and their relation: *entailment* if the oracle
reads the same meaning in both, *contradiction* if both are about the same thing and claim different
things, *neutral* otherwise. The relation is symmetric, as meaning is here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from train_tiny_pair import prompt, solved

from semspec import world
from semspec.probes.cluster.greedy import normal
from semspec.world.base import LETTERS, Domain, Meaning, Problem
from semspec.world.weekdays import WEEKDAYS

CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)  # the order of microsoft/deberta-v2-xlarge-mnli
CLOSING = "\n</think>"
LONGEST_STEP = 48  # tokens
Slots = dict[str, str]
Atom = tuple[tuple[str, ...], int, int]
"""One claim of a step, and where in its text it is written."""


@dataclass(frozen=True)
class Pair:
    context: str
    a: str
    b: str
    label: int
    # (start, end, whether the other step says the same) of every claim in a and in b
    claims: tuple[list[tuple[int, int, bool]], list[tuple[int, int, bool]]] = field(
        default_factory=lambda: ([], [])
    )


def relation(problem: Problem, a: str, b: str) -> int:
    one, two = world.meaning(problem, a), world.meaning(problem, b)
    if (one or normal(a)) == (two or normal(b)):
        return ENTAILMENT
    if one is None or two is None:
        return NEUTRAL
    return CONTRADICTION if subject(one) == subject(two) != () else NEUTRAL


def subject(said: Meaning) -> tuple[str, ...]:
    """Return the subject of a step; () if it claims nothing that could be contradicted."""
    if said[0] == "goal":
        return ()
    if said[0] == "recap":
        return ("recap", said[1], said[3])
    return said[:1] if said[0] == "answer" else said[:2]


def atoms(problem: Problem, text: str) -> list[Atom]:
    """Return the single claims of a step; steps of one kind with the same meaning have the same claims."""
    domain = world.DOMAINS[problem.domain]
    bare = text.removesuffix(CLOSING)
    for kind, forms in domain.forms.items():
        for form in forms:
            found = form.pattern.fullmatch(bare)
            if found:
                return list(_atoms(kind, found))
    boxed = re.search(r"\{(\w+)\}", text)
    return list(_value("r", boxed[1], boxed.start(1))) if boxed else []


def _value(role: str, value: str, at: int, *of: str) -> Iterator[Atom]:
    """Yield the parts of a value: each digit by itself, a weekday whole."""
    if not value.isdigit():
        yield (role, *of, value), at, at + len(value)
        return
    for i, digit in enumerate(value):
        yield (role, *of, str(i), digit), at + i, at + i + 1


def _atoms(kind: str, found: re.Match[str]) -> Iterator[Atom]:
    slots = found.groupdict()
    for name, text in slots.items():
        at = found.start(name)
        if name in "EX":
            yield from _expression(name, text, at)
        elif name in "rp":
            of = [slots["u" if name == "p" else "v"]] if kind == "recap" else []
            yield from _value("r", text, at, *of)
        else:
            yield ("name", text), at, at + len(text)


def _expression(role: str, text: str, at: int) -> Iterator[Atom]:
    terms = list(re.finditer(r"\S+", text))
    for i, term in enumerate(terms):
        start, word = at + term.start(), term[0]
        if word in ("+", "*", "-"):  # a - b and b - a count as differing in their operator
            order = terms[0][0][0] if word == "-" else ""
            yield (role, word, order), start, start + 1
        elif "=" in word:
            yield (role, word[0]), start, start + 1
            yield from _value(role, word[2:], start + 2, word[0])
        elif word != "days":
            yield (role, word, str(i) if word.isalpha() and len(word) > 1 else ""), start, start + 1


def compare(problem: Problem, a: str, b: str) -> Pair:
    """Return the pair without its context: its label, and for each claim whether it agrees."""
    one, two = world.meaning(problem, a), world.meaning(problem, b)
    label = relation(problem, a, b)
    if one is None or two is None or one[0] != two[0]:
        return Pair("", a, b, label)
    left, right = atoms(problem, a), atoms(problem, b)
    said, answered = {c for c, _, _ in left}, {c for c, _, _ in right}
    assert label != ENTAILMENT or said == answered, (a, b)
    if label != ENTAILMENT and said == answered:  # z=46 - z=82: claims of one name merge
        return Pair("", a, b, label)
    ours = [(start, end, claim in answered) for claim, start, end in left]
    theirs = [(start, end, claim in said) for claim, start, end in right]
    return Pair("", a, b, label, (ours, theirs))


def write(rng: random.Random, domain: Domain, kind: str, slots: Slots) -> str:
    if kind == "answer":
        return world.render_answer(slots["r"])
    text = rng.choice(domain.forms[kind]).format(**slots)
    return text + CLOSING if kind == "final" else text


def claims_of(rng: random.Random, problem: Problem, kind: str, at: int) -> Slots:
    """Return the slots of a true step of that kind, with ``at`` definitions known."""
    values, names = problem.values, problem.names
    if kind == "value":
        definition = problem.definitions[min(at, len(problem.definitions) - 1)]
        domain = world.DOMAINS[problem.domain]
        substituted = domain.substitute(definition.expression, values)
        name, expression = definition.name, definition.expression
        return {"v": name, "E": expression, "X": substituted, "r": values[name]}
    if kind == "recap":
        u, v = names[max(0, at - 1)], names[max(1, at)]
        return {"u": u, "p": values[u], "v": v, "r": values[v]}
    if kind == "start":
        return {"v": names[0], "r": values[names[0]]}
    return {"t": problem.target, "r": problem.answer}


def mutate(rng: random.Random, slots: Slots, swaps: float = 0.0) -> Slots:
    """Change one thing: a digit, a name, an operand, an operator, a day, or swap two values.

    ``swaps``: how often to swap the values of two operands, where there are two.
    """
    changed = dict(slots)
    operands = re.findall(r"=(\d\d)", slots.get("X", ""))
    if len(operands) == 2 and swaps and rng.random() < swaps:
        operands.reverse()
        changed["X"] = re.sub(r"=\d\d", lambda _: f"={operands.pop(0)}", slots["X"])
        return changed
    if rng.random() < 0.12 and {"u", "v"} <= set(slots):
        changed["p"], changed["r"] = slots["r"], slots["p"]
        return changed
    if rng.random() < 0.08 and " - " in slots.get("E", ""):
        for name in "EX":
            changed[name] = " - ".join(reversed(slots[name].split(" - ")))
        return changed
    weights = {"X": 3, "r": 3, "p": 2, "E": 2}
    names = sorted(slots)
    name = rng.choices(names, [weights.get(n, 1) for n in names])[0]
    words = rf"\d|\b[a-z]\b|(?<= )[-+*](?= )|after|before|{'|'.join(WEEKDAYS)}"
    spot = rng.choice(list(re.finditer(words, slots[name])))
    start, end = spot.span()
    changed[name] = slots[name][:start] + _other(rng, spot[0], slots) + slots[name][end:]
    return changed


def _other(rng: random.Random, old: str, slots: Mapping[str, str]) -> str:
    if old.isdigit():
        pool: Sequence[str] = "0123456789"
    elif old in WEEKDAYS:
        pool = WEEKDAYS
    elif old in ("after", "before"):
        pool = ("after", "before")
    elif old.isalpha():
        near = [s for s in re.findall(r"\b[a-z]\b", " ".join(slots.values())) if s != old]
        pool = near if near and rng.random() < 0.3 else LETTERS
    else:
        pool = "+-*"
    return rng.choice([new for new in pool if new != old])


def reorder(rng: random.Random, slots: Slots) -> Slots:
    """Return the same claim the other way round: b + a for a + b, and the two values of a recap."""
    changed = dict(slots)
    for name in "EX":
        parts = re.split(r" ([+*]) ", slots.get(name, ""))
        if len(parts) == 3 and rng.random() < 0.15:
            changed[name] = f"{parts[2]} {parts[1]} {parts[0]}"
    if "u" in slots and rng.random() < 0.5:
        changed |= {"u": slots["v"], "v": slots["u"], "p": slots["r"], "r": slots["p"]}
    return changed


def garble(rng: random.Random, text: str, other: str) -> str:
    """Return an unreadable text: a word lost, doubled or replaced, or the halves of two texts."""
    words, draw = text.split(" "), rng.random()
    at = rng.randrange(len(words))
    if draw < 0.25:
        del words[at]
    elif draw < 0.5:
        words.insert(at, words[at])
    elif draw < 0.8:
        words[at] = rng.choice(other.split(" "))
    else:
        words[at:] = other.split(" ")[rng.randrange(other.count(" ") + 1) :]
    return " ".join(words)


KINDS = {"goal": 1, "start": 1.5, "value": 8, "recap": 2.5, "final": 2, "answer": 0.7}


def made(rng: random.Random, weekdays: float = 0.4, swaps: float = 0.0) -> Pair:
    """Return a pair after a context whose steps so far are true, or mostly true."""
    domain = world.DOMAINS["weekdays" if rng.random() < weekdays else "residues"]
    problem = domain.make(rng)
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    at = rng.randrange(len(problem.definitions))
    slots = claims_of(rng, problem, kind, at)
    if rng.random() < 0.35:  # errors are compared with errors too
        slots = mutate(rng, slots)
    a = write(rng, domain, kind, reorder(rng, slots))
    draw = rng.random()
    if draw < 0.45:
        b = write(rng, domain, kind, reorder(rng, slots))
    elif draw < 0.88:
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            slots = mutate(rng, slots, swaps)
        b = write(rng, domain, kind, reorder(rng, slots))
    elif draw < 0.93:
        other = rng.choices(list(KINDS), list(KINDS.values()))[0]
        b = write(rng, domain, other, claims_of(rng, problem, other, at))
    else:
        b = garble(rng, a, write(rng, domain, kind, slots))
    if draw > 0.97:  # two texts that differ only because one closes the thinking
        b = a.removesuffix(CLOSING) if a.endswith(CLOSING) else a + CLOSING
    if rng.random() < 0.5:
        a, b = b, a
    pair = compare(problem, a, b)
    return Pair(prefix(rng, problem, kind, at), a, b, pair.label, pair.claims)


def prefix(rng: random.Random, problem: Problem, kind: str, at: int) -> str:
    """Return the prompt and the steps that a step of that kind may follow, some of them wrong."""
    domain = world.DOMAINS[problem.domain]
    before = [] if kind == "goal" else ["goal"]
    if kind not in ("goal", "start"):
        before.append("start")
        before += ["value"] * (at if kind in ("value", "recap") else len(problem.definitions))
    if kind == "answer":
        before.append("final")
    text, known = prompt(problem.question), 0
    for step in before:
        slots = claims_of(rng, problem, step, known)
        known += step == "value"
        text += write(rng, domain, step, mutate(rng, slots) if rng.random() < 0.1 else slots)
        text += "\n\n"
    return text


def contexts(seed: int, count: int) -> list[str]:
    """Return prompts with true steps, cut anywhere, half of each domain."""
    found = []
    for i in range(count):
        rng = random.Random(f"{seed} context {i}")
        domain = list(world.DOMAINS.values())[i % 2]
        problem, steps = solved(rng, domain)
        found.append(prompt(problem.question) + "".join(steps[: rng.randrange(len(steps))]))
    return found


@torch.inference_mode()
def sample(
    folder: Path, texts: Sequence[str], number: int, temperature: float, seed: int
) -> list[list[str]]:
    """Return ``number`` next steps after each context, written by a causal model."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ends = torch.tensor([tokenizer.convert_tokens_to_ids("\n\n"), tokenizer.eos_token_id])
    steps: list[list[str]] = [[] for _ in texts]
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    torch.manual_seed(seed)
    for start in range(0, len(order), 8):
        batch = order[start : start + 8]
        given = tokenizer([texts[i] for i in batch], return_tensors="pt", padding=True)
        mask = given["attention_mask"]
        said = model(input_ids=given["input_ids"], attention_mask=mask, logits_to_keep=1,
                     position_ids=(mask.cumsum(-1) - 1).clamp(0))  # fmt: skip
        cache, logits = said.past_key_values, said.logits[:, -1]
        cache.batch_repeat_interleave(number)  # a context is read once for all its samples
        logits, mask = (x.repeat_interleave(number, 0) for x in (logits, mask))
        written: list[torch.Tensor] = []
        over = torch.zeros(len(logits), dtype=torch.bool)
        while not over.all() and len(written) < LONGEST_STEP:
            token = torch.multinomial((logits / temperature).softmax(-1), 1)
            written.append(token.masked_fill(over[:, None], tokenizer.pad_token_id))
            over |= torch.isin(token[:, 0], ends)
            mask = torch.cat([mask, torch.ones_like(token)], 1)
            logits = model(input_ids=token, attention_mask=mask, past_key_values=cache,
                           position_ids=mask.sum(-1, keepdim=True) - 1).logits[:, -1]  # fmt: skip
        for row, ids in enumerate(torch.cat(written, 1)):
            text = tokenizer.decode(ids).replace("<|endoftext|>", "").removesuffix("<|im_end|>")
            steps[batch[row // number]].append(text)
    return steps


def sampled(
    rng: random.Random, texts: Sequence[str], steps: Sequence[Sequence[str]]
) -> Iterator[Pair]:
    """Yield pairs of different steps of one context, without end, labelled by the oracle."""
    while True:
        i = rng.randrange(len(texts))
        distinct = sorted({step.rstrip() for step in steps[i]})
        problem = world.find_problem(texts[i])
        assert problem is not None
        if len(distinct) > 1:
            a, b = rng.sample(distinct, 2)
            pair = compare(problem, a, b)
            yield Pair(texts[i], a, b, pair.label, pair.claims)
