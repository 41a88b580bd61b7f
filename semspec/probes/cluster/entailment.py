"""Decide with an MNLI model whether one of two steps after the same context entails the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from semspec.deferred import Tensor, torch
from semspec.errors import UserError, first_line
from semspec.probes.cluster.greedy import Triple
from semspec.probes.cluster.tokenizer import tokenizer_of

ENTAILMENT = "entailment"
TRIED: Triple = ("We have to add 2 and 3. ", "2 + 3 = 5.", "The sum is 5.")


class Entailment:
    """A sequence classifier that decides whether one text entails another.

    The paper's is ``microsoft/deberta-v2-xlarge-mnli``; the embedded one is ``tiny-nli``. The class of
    entailment is looked up in ``config.id2label``, because models differ in their order.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 64) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: give at least 1")
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.label = entailment_label(model.config.id2label)
        self.max_length = _longest(model.config, tokenizer)
        self._special = tokenizer.num_special_tokens_to_add(pair=True)

    @classmethod
    def load(
        cls, folder: Path | str, *, device: str = "cpu", batch_size: int = 64, tried: bool = False
    ) -> Entailment:
        """Load a model from a folder, such as ``published.fetched`` gives; ``auto``: on a GPU if there is one.

        With ``tried`` it also judges a pair. Raises UserError if the folder holds no such model or lacks weights, or if
        the model does not fit on the device.
        """
        from transformers import AutoModelForSequenceClassification
        from transformers.utils import logging

        # a bar would break into the command's own display
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        device = device_of(device)
        # half the memory where bfloat16 is native; exact where speed does not matter
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        try:
            where = torch.device(device)
            tokenizer = tokenizer_of(Path(folder))
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
            model = model.to(where).eval()
            made = cls(model, tokenizer, batch_size=batch_size)
            _check_complete(folder, loading["missing_keys"])
            if tried:
                made.try_out()
        except UserError:
            raise
        except torch.OutOfMemoryError as e:
            raise UserError(
                f"the entailment model of {folder} does not fit on {device} beside the"
                " other models: free memory (running servers keep theirs), or give"
                " cluster.device=cpu"
            ) from e
        except Exception as e:  # transformers raises whatever its parsers raise
            raise UserError(
                f"cannot load an entailment model from {folder} ({first_line(e)[:200]}): it"
                " needs a sequence classifier's config, tokenizer and safetensors weights"
                " (for a Hub model without them, give the revision of its conversion)"
            ) from e
        return made

    def try_out(self) -> None:
        """Judge one pair as a run would; raise UserError if the logits are misshapen or not finite."""
        encoded = self._encode([TRIED])
        logits = self._logits(encoded, [0])
        classes = len(self.model.config.id2label)
        if logits.shape != (1, classes) or not logits.isfinite().all():
            raise UserError(
                f"the entailment model returns NaN on {self.model.device} for a plain pair"
                " of texts: use another model, cluster.model=, or another device,"
                " cluster.device=cpu"
            )

    def both_ways(self, pairs: Sequence[Triple]) -> list[bool]:
        """Return whether a and b mean the same after the context: each entails the other, strictly.

        (context + a => context + b) and (context + b => context + a) must both be classified as
        entailment by argmax. The second is only tested where the first holds.
        """
        held = [i for i, yes in enumerate(self.entails(pairs)) if yes]
        back = self.entails([(pairs[i][0], pairs[i][2], pairs[i][1]) for i in held])
        both = [False] * len(pairs)
        for i, yes in zip(held, back, strict=True):
            both[i] = yes
        return both

    def entails(self, pairs: Sequence[Triple]) -> list[bool]:
        """Return whether context + a entails context + b."""
        if not pairs:
            return []
        encoded = self._encode(pairs)
        ids = encoded["input_ids"]
        order = sorted(range(len(pairs)), key=lambda i: len(ids[i]), reverse=True)
        answers = [False] * len(pairs)
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]  # of similar length: little padding
            labels = self._logits(encoded, batch).argmax(-1).tolist()
            for i, label in zip(batch, labels, strict=True):
                answers[i] = label == self.label
        return answers

    def _logits(self, encoded: dict[str, list[list[int]]], batch: Sequence[int]) -> Tensor:
        inputs = self.tokenizer.pad(
            {name: [rows[i] for i in batch] for name, rows in encoded.items()},
            return_tensors="pt",
        ).to(self.model.device)
        with torch.inference_mode():
            found: Tensor = self.model(**inputs).logits
        return found

    def _encode(self, pairs: Sequence[Triple]) -> dict[str, list[list[int]]]:
        """Encode both texts of each pair, the context cut from the left so that the steps survive.

        The room that the two steps leave is divided between the two copies of the context's end. Steps
        that do not fit by themselves also lose their beginnings, the longer one first.
        """
        cut = {context: self._cutter(context) for context in {context for context, _, _ in pairs}}
        steps = {step for _, a, b in pairs for step in (a, b)}
        sizes = {step: len(self._read(step.rstrip())["input_ids"]) for step in steps}
        left, right = [], []
        for context, a, b in pairs:
            room = (self.max_length - self._special - sizes[a] - sizes[b]) // 2
            tail = cut[context](max(0, room))
            left.append(tail + a.rstrip())
            right.append(tail + b.rstrip())
        self.tokenizer.truncation_side = "left"
        limit = {"truncation": "longest_first", "max_length": self.max_length}
        encoded = self.tokenizer(left, right, **limit)
        return {name: encoded[name] for name in self.tokenizer.model_input_names if name in encoded}

    def _read(self, text: str, **options: bool) -> Any:
        return self.tokenizer(text, add_special_tokens=False, verbose=False, **options)

    def _cutter(self, context: str) -> Callable[[int], str]:
        """Return a function that maps a number of tokens to that much of the context's end."""
        offsets = self._read(context, return_offsets_mapping=True)["offset_mapping"]
        starts = [start for start, _ in offsets]

        def tail(tokens: int) -> str:
            if tokens >= len(starts):
                return context
            return context[starts[len(starts) - tokens] :] if tokens else ""

        return tail


def device_of(name: str) -> str:
    """Return the device that a name stands for; auto: a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _check_complete(folder: Path | str, missing: Iterable[str]) -> None:
    """Raise UserError for weights that the files lack: transformers draws them at random."""
    if lacking := sorted(missing):
        shown = ", ".join(lacking[:2]) + (f" and {len(lacking) - 2} more" * (len(lacking) > 2))
        raise UserError(
            f"{folder} lacks a classifier's weights ({shown}): use a model that was trained"
            " on MNLI, or an intact copy"
        )


def entailment_label(id2label: dict[int, str]) -> int:
    """Return the class named entailment, in any case; raise UserError unless there is one."""
    found = [int(i) for i, name in id2label.items() if str(name).strip().lower() == ENTAILMENT]
    if len(found) != 1:
        names = ", ".join(map(str, id2label.values()))
        raise UserError(
            f"the model has no class '{ENTAILMENT}' (its classes: {names}): use a model"
            " trained on MNLI, or name its classes in config.json under id2label"
        )
    return found[0]


def _longest(config: Any, tokenizer: Any) -> int:
    """Return the most tokens of an input; a tokenizer without a limit reports a huge one."""
    positions = getattr(config, "max_position_embeddings", 512)
    return min(int(tokenizer.model_max_length), int(positions))
