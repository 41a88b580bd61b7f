"""SGLang's private names, for reading the states of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.sglang_plugin.compat import KEPT, LOOPS, READING, Hook, since
from semspec.storage.screen import last_line

ROWS = 512  # rows of logits at a time: 300 MB in float32 with a vocabulary of 150,000


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model that this process runs."""

    model: ModelConfig
    layers: int
    width: int
    device: Any


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one request in a pass: tokens ``start`` to ``end`` of its prompt."""

    index: int  # of the request in the pass
    request: str
    custom_params: Any
    ids: Sequence[int]  # the whole prompt
    start: int
    end: int
    row: int  # of token ``start`` in the pass


class Pass(Protocol):
    """What is read in one pass."""

    layers: frozenset[int]  # 0: embeddings ... L: after the final norm
    rows: int  # of all requests together
    requests: int
    followed: list[tuple[int, int]]  # (row, token after it) whose log-probability is wanted

    def states(self, layer: int, x: Tensor) -> None:
        """Take the states [rows, width] of one of ``layers``."""

    def replies(self, logprobs: Tensor | None, trouble: str) -> dict[int, Any]:
        """Return replies by request index; a reply with a ``copy`` method still waits for the device."""


class Watcher(Protocol):
    """Reads states of prompts and drafts."""

    def loaded(self, model: Loaded) -> None: ...

    def needed_from(self, custom_params: Any, prompt: int) -> int | None:
        """Return the first prompt position whose states are wanted, or None."""

    def begin(self, requests: int, rows: int, pieces: Sequence[Piece]) -> Pass | None:
        """Return what is read in a pass over prompts, or None."""

    def verifying(self, loops: Sequence[Any], nodes: int) -> Pass | None:
        """Return what is read in a pass that verifies drafts of ``nodes`` nodes each, or None."""


def _logprobs(
    processor: Any, states: Tensor, lm_head: Any, source: Any, followed: Sequence[tuple[int, int]]
) -> Tensor:
    """Return log-probabilities [n] of the tokens after these rows, computing ROWS rows of logits at a time."""
    from sglang.srt.layers.logits_processor import LogitsMetadata
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    if isinstance(source, ForwardBatch):  # as the logits processor does
        source = LogitsMetadata.from_forward_batch(source)
    parts = []
    for some in torch.split(torch.tensor(followed, device=states.device), ROWS):
        rows = processor._get_logits(states[some[:, 0]], lm_head, source).float()
        parts.append(rows.gather(1, some[:, 1:])[:, 0] - rows.logsumexp(1))
    return torch.cat(parts)


class _Once(list[Any]):
    """A request's values, which stay whole when SGLang slices them as if there were one per token."""

    def __getitem__(self, at: Any) -> Any:
        return list(self) if isinstance(at, slice) and not at.start else super().__getitem__(at)


class Reading:
    """Hooks that let a watcher read states; they translate SGLang's objects for it.

    Inner layers are captured with the mechanism that SGLang's models have for EAGLE-3 (``layers_to_capture``:
    i is the state before layer i), embeddings with a forward hook on the embedding module, and the last states
    (after the final norm) where the logits are computed.
    """

    def __init__(self, watcher: Watcher, key: str) -> None:
        self.watcher, self.key = watcher, key
        self.running: Pass | None = None  # a process runs one pass at a time
        self.missing: set[int] = set()  # layers not seen yet in this pass
        self.captured: list[int] = []  # layers still to be captured in this pass
        self.own: list[int] = []  # layers that the server itself captures
        self.top = 0  # the last layer
        self.logprobs: Tensor | None = None  # of this pass's ``followed``
        # older versions append whole tensors to a list, which goes to the logits processor
        self.captures = since("0.5.22")

    def hooks(self) -> list[Hook]:
        if not since("0.5.15"):
            raise UserError(
                "SGLang 0.5.14 can mix up the values of different requests: use a later version"
            )
        runner = "model_executor.model_runner.ModelRunner"
        graphs = "model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner"
        parts = "managers.scheduler_components"
        hooks = [
            Hook(f"{runner}.load_model", self._loaded, "AFTER"),
            Hook(f"{runner}.forward", self._forward, "AROUND"),
            Hook("model_executor.forward_batch_info.ForwardBatch.init_new", self._plan, "AFTER"),
            Hook("layers.logits_processor.LogitsProcessor.forward", self._logits, "AROUND"),
            Hook("managers.schedule_batch.Req._compute_max_prefix_len", self._prefix, "AFTER"),
            Hook(f"{graphs}.can_run_graph", self._graph, "AROUND"),
        ]
        if not self.captures:
            return [*hooks, Hook(KEPT, self._kept, "AFTER")]
        captured = "layers.aux_hidden_states.AuxHiddenStateList.capture"
        once = f"{parts}.output_streamer.SchedulerOutputStreamer"
        once += ".is_request_level_customized_info_key"
        hooks.append(Hook(captured, self._capture, "AROUND"))
        return [*hooks, Hook(once, self._is_once, "AFTER")]

    def _loaded(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.is_draft_worker:
            return
        try:
            self._load(runner, runner.server_args)
        except UserError as error:  # any other exception reaches the user as a page of traceback
            raise last_line(f"semspec's SGLang plugin: {error}") from error

    def _load(self, runner: Any, args: Any) -> None:
        for name in ("pp_size", "attn_cp_size", "dcp_size"):
            if (getattr(args, name, None) or 1) > 1:
                raise UserError(f"states cannot be read with {name}={getattr(args, name)}: use 1")
        for name in ("enable_two_batch_overlap", "enable_dp_attention"):
            if getattr(args, name, False):
                raise UserError(f"states cannot be read with {name}: leave it out")
        model = runner.model
        body: Any = getattr(model, "model", None)
        known = hasattr(body, "layers_to_capture") and hasattr(body, "embed_tokens")
        if not known or not hasattr(model, "capture_aux_hidden_states"):
            raise UserError(
                f"{type(model).__name__} has no way to read its layers' states: use a model of the"
                " families Llama, Qwen2 or Qwen3"
            )
        body.embed_tokens.register_forward_hook(self._embedded)
        self.top = len(body.layers)
        at = ModelConfig(path=args.model_path, revision=args.revision)
        self.watcher.loaded(Loaded(at, self.top, model.config.hidden_size, runner.device))
        setattr(runner, READING, True)

    def _prefix(self, result: int, req: Any, *args: Any) -> int | None:
        """Limit how much of the prefix cache is used, so that the wanted states are computed."""
        if req.output_ids:  # the prompt was read before the request was retracted
            return None
        params, length = req.sampling_params.custom_params, len(req.origin_input_ids)
        needed = self.watcher.needed_from(params, length)
        return None if needed is None else max(0, min(result, needed))

    def _plan(self, batch: Any, cls: Any, schedule: Any, runner: Any, *_: Any, **__: Any) -> None:
        mode = batch.forward_mode
        if runner.is_draft_worker or not mode.is_extend():
            return
        if mode.is_target_verify():
            if loops := getattr(schedule.spec_info, LOOPS, None):
                nodes = schedule.spec_info.draft_token_num
                batch._semspec_pass = self.watcher.verifying(loops, nodes)
            return
        starts, lengths = batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu
        if not starts or not lengths:
            return
        pieces, row = [], 0
        for index, req in enumerate(schedule.reqs):
            start, length, ids = starts[index], lengths[index], req.origin_input_ids
            if not req.output_ids:  # otherwise it is decoding in a mixed batch, or was retracted
                end = min(start + length, len(ids))
                params = req.sampling_params.custom_params
                pieces.append(Piece(index, req.rid, params, ids, start, end, row))
            row += length
        batch._semspec_pass = self.watcher.begin(len(schedule.reqs), row, pieces)

    def _forward(self, original: Any, runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        reading: Pass | None = getattr(batch, "_semspec_pass", None)
        if reading is None or runner.is_draft_worker:
            return original(runner, batch, *args, **kwargs)
        model, body = runner.model, runner.model.model
        own, flag = body.layers_to_capture, model.capture_aux_hidden_states
        between = {i for i in reading.layers if 0 < i < self.top}
        self.running, self.missing, self.own = reading, set(reading.layers), list(own)
        self.logprobs, self.captured = None, sorted(between | set(own))
        try:
            if between:
                body.layers_to_capture = list(self.captured)
                if not self.captures:
                    model.capture_aux_hidden_states = True
            result = original(runner, batch, *args, **kwargs)
        finally:
            self.running = None
            body.layers_to_capture, model.capture_aux_hidden_states = own, flag
        trouble = f"layers {sorted(self.missing)} were not seen" if self.missing else ""
        if reading.followed and self.logprobs is None:
            trouble = "the rows before the logits were not seen"
        logits = result.logits_output
        replies = reading.replies(self.logprobs, trouble)
        if replies:  # one entry per request, None for requests that read nothing
            column = [replies.get(index) for index in range(reading.requests)]
            logits.customized_info = {**(logits.customized_info or {}), self.key: column}
        return result

    def _take(self, layer: int, x: Tensor) -> None:
        if self.running is not None and layer in self.missing and x.shape[0] == self.running.rows:
            self.missing.discard(layer)
            self.running.states(layer, x)

    def _embedded(self, module: Any, args: Any, x: Tensor) -> None:
        self._take(0, x)

    def _capture(self, original: Any, aux: Any, x: Tensor, **kwargs: Any) -> Any:
        if self.running is None or not self.captured:
            return original(aux, x, **kwargs)
        layer = self.captured.pop(0)
        self._take(layer, x)
        return original(aux, x, **kwargs) if layer in self.own else None

    def _logits(
        self,
        original: Any,
        processor: Any,
        input_ids: Any,
        hidden_states: Tensor,
        lm_head: Any,
        logits_metadata: Any,
        aux_hidden_states: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self.running is not None:
            if not self.captures and isinstance(aux_hidden_states, list):
                layers = list(zip(self.captured, aux_hidden_states, strict=True))
                for layer, states in layers:
                    self._take(layer, states)
                aux_hidden_states = [states for i, states in layers if i in self.own] or None
            self._take(self.top, hidden_states)
            followed = self.running.followed
            if followed and len(hidden_states) == self.running.rows:
                known = (processor, hidden_states, lm_head, logits_metadata)
                self.logprobs = _logprobs(*known, followed)
        given = (input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states)
        return original(processor, *given, *args, **kwargs)

    def _graph(self, original: Any, runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run passes that are read without a CUDA graph; other passes keep theirs."""
        reading: Pass | None = getattr(batch, "_semspec_pass", None)
        if reading is not None and (reading.layers or reading.followed):
            return False
        return original(runner, batch, *args, **kwargs)

    def _kept(self, result: Any, processor: Any, index: int, req: Any, logits: Any) -> None:
        info = req.customized_info or {}
        if self.key in info:
            info[self.key] = _Once(info[self.key])

    def _is_once(self, result: Any, streamer: Any, key: str) -> bool | None:
        """Mark the reply as one per request, not per token, so that it is sent even without a token."""
        return True if key == self.key else None
