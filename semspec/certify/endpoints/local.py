"""A model in this process: transformers' ``generate``, with or without an assistant, and its plain forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semspec.certify.laws import END, LISTED, Law, Token, Tokens, law_of_row, with_end
from semspec.deferred import torch
from semspec.errors import UserError, first_line
from semspec.models.intact import check_model
from semspec.models.text import Text
from semspec.models.wanted import MODEL
from semspec.types import Sampling

ROWS = 16  # the most sequences of one length in a pass
TYPES = ("float32", "bfloat16", "float16")


def load(folder: str, dtype: str) -> Any:
    """Load a model from a local folder with transformers; raise UserError if that fails."""
    from transformers import AutoModelForCausalLM

    place = Path(folder).expanduser()
    if not (place / "config.json").is_file():
        raise UserError(
            f"{folder} contains no model: give the folder of a model in transformers' format"
        )
    check_model(place, MODEL.of)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=getattr(torch, dtype), local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{folder} cannot be loaded ({first_line(error)})") from error
    return model.eval()


class Forward:
    """The model's plain forward pass: the distribution that every server with these weights should have."""

    cheap = True

    def __init__(
        self,
        folder: str,
        dtype: str = "float32",
        model: Any = None,
        ends: frozenset[Token] = frozenset(),
    ) -> None:
        """``ends``: tokens that end a text at the certified server; they count as one token."""
        self.folder, self.dtype, self.ends = folder, dtype, ends
        self.model = load(folder, dtype) if model is None else model

    @property
    def name(self) -> str:
        return f"the forward pass of {Path(self.folder).name} ({self.dtype})"

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        return [with_end(law_of_row(row, sampling), self.ends) for row in self._rows(prefixes)]

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        found: list[Mapping[Token, float]] = []
        for row, token in zip(self._rows(prefixes), also, strict=True):
            values = row.float().log_softmax(-1)
            best = values.topk(min(LISTED, len(values)))
            known: dict[Token, float] = dict(
                zip(best.indices.tolist(), best.values.tolist(), strict=True)
            )
            if isinstance(token, int) and token < len(values):
                known[token] = float(values[token])
            if ended := [float(values[int(end)]) for end in self.ends if int(end) < len(values)]:
                known = {t: v for t, v in known.items() if t not in self.ends} | {END: max(ended)}
            found.append(known)
        return found

    def _rows(self, prefixes: Sequence[Tokens]) -> list[Any]:
        """Return the logits after each prefix; a prefix of another prefix shares its pass."""
        wanted = sorted(set(prefixes), key=lambda p: tuple(map(int, p)))
        whole = [
            p for p, after in zip(wanted, [*wanted[1:], ()], strict=True) if after[: len(p)] != p
        ]
        lengths: dict[int, list[Tokens]] = {}
        for prefix in whole:
            lengths.setdefault(len(prefix), []).append(prefix)
        rows: dict[Tokens, Any] = {}
        needed = set(wanted)
        for same in lengths.values():
            for start in range(0, len(same), ROWS):
                batch = same[start : start + ROWS]
                ids = torch.tensor([list(map(int, p)) for p in batch], device=self.model.device)
                with torch.inference_mode():
                    logits = self.model(input_ids=ids).logits
                for prefix, own in zip(batch, logits, strict=True):
                    for length in range(1, len(prefix) + 1):
                        if prefix[:length] in needed and prefix[:length] not in rows:
                            rows[prefix[:length]] = own[length - 1].float().cpu().clone()
        return [rows[prefix] for prefix in prefixes]


class Local:
    """A writer in this process: one model's folder, plain or with one kind of speculation."""

    kind: str
    assisted: str  # the words before a draft model's name

    def __init__(self, folder: str, assistant: str, lookup: int) -> None:
        self.folder, self.lookup, self.text = folder, lookup, Text(folder)
        self.help = f"{self.assisted} {Path(assistant).name}" if assistant else "plain"
        self.help = f"prompt lookup of {lookup} tokens" if lookup else self.help

    @property
    def name(self) -> str:
        return f"{Path(self.folder).name}, {self.engine}, {self.help}"

    @property
    def engine(self) -> str:
        """The program that runs the model, with its version."""
        raise NotImplementedError

    def encode(self, text: str) -> Tokens:
        return tuple(self.text.encode(text))

    def show(self, tokens: Tokens) -> str:
        return self.text.decode([t for t in tokens if isinstance(t, int)])

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        return [self.one(prefix, length, sampling) for prefix in prefixes]

    def one(self, prefix: Tokens, length: int, sampling: Sampling) -> Tokens:
        """Return the next tokens after a prefix."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: the models end with the process."""


class Transformers(Local):
    """transformers' ``generate``: plain, with an assistant model, or with prompt lookup."""

    kind = "transformers"
    assisted = "assisted by"

    def __init__(
        self,
        folder: str,
        dtype: str = "float32",
        assistant: str = "",
        lookup: int = 0,
        seed: int = 0,
    ) -> None:
        self.model = load(folder, dtype)
        super().__init__(folder, assistant, lookup)
        self.assistant = load(assistant, dtype) if assistant else None
        torch.manual_seed(seed)

    @property
    def engine(self) -> str:
        from transformers import __version__

        return f"transformers {__version__} generate"

    def one(self, prefix: Tokens, length: int, sampling: Sampling) -> Tokens:
        from transformers import GenerationConfig

        options: dict[str, Any] = {"do_sample": False}
        if not sampling.greedy:
            options = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p or None,
            }
        if self.lookup:
            options["prompt_lookup_num_tokens"] = self.lookup
        # ignore the end of text: it counts as an ordinary token
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=length, pad_token_id=0, eos_token_id=None, bos_token_id=None, **options
        )
        ids = torch.tensor([list(map(int, prefix))], device=self.model.device)
        more = {} if self.assistant is None else {"assistant_model": self.assistant}
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **more
            )
        return tuple(out[0, len(prefix) :].tolist()[:length])
