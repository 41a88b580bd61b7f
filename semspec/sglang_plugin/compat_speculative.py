"""``compat`` for speculative decoding: the private names of SGLang that rules and drafters use.

``compat_worker`` has those of the drafting worker, ``compat_ranks`` those of processes that share a batch.
Looked up in the wheels of 0.5.20 to 0.5.23; differences between versions are noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from semspec.errors import UserError
from semspec.sglang_plugin import compat, settings, trees
from semspec.sglang_plugin.compat import LOOPS, READING
from semspec.sglang_plugin.compat_ranks import shares_passes
from semspec.types import Sampling

OLDEST = "0.5.20"
# one function verifies for EAGLE, EAGLE3, STANDALONE and NGRAM; SGLang's registry also hooks it in
# modules that imported it by name
SAMPLE = "speculative.eagle_utils.eagle_sample"
LOADED = "model_executor.model_runner.ModelRunner.load_model"
DRAFTED = "semspec_drafted"  # on our drafters' verify inputs: [requests] nodes without padding
SMALL_MODEL = settings.MODEL  # the drafter that can draft whole steps
ASKED = "managers.scheduler.Scheduler.get_internal_state"  # for /server_info
ENDLESS = 1 << 30  # tokens, if SGLang has no limit
RETRACTED = "managers.schedule_batch.Req.reset_for_retract"
JUDGED = "semspec_judged"  # on a request: its steps are judged, so only its loop may add tokens
HELD = "semspec_held"  # on such a request: a token taken back, and its place in the output
LOOP = "semspec_loop"  # on a request: the loop that judges its steps, if drafts are ``handed``
RULES = "semspec_rules"  # on the target's runner: what requests ask of their verification


def check_version() -> None:
    """Raise UserError for a version that ``compat`` supports but this file does not."""
    if not compat.since(OLDEST):
        raise UserError(
            f"rules and drafters need SGLang {OLDEST} or later, and this is"
            f" {compat.version()}: install a later one, or leave verification and drafting"
            " out"
        )


def params_of(request: Any) -> Any:
    return request.sampling_params


def sampling_of(params: Any) -> Sampling:
    """Return a request's sampling. On arrival SGLang turns temperature 0 into top_k = 1."""
    if params.top_k == 1:
        return Sampling(0.0)
    cuts = int(params.top_k), float(params.top_p), float(params.min_p)
    return Sampling(float(params.temperature), *cuts)


def asked(params: Any) -> Any:
    return params.custom_params


def loop_of(request: Any) -> Any:
    """Return the loop that ``keep_loop`` stored; None if there is none."""
    return getattr(request, LOOP, None)


def keep_loop(request: Any, loop: Any) -> None:
    """Store a loop on its request, so that it lives as long as the request."""
    setattr(request, LOOP, loop)


def text_of(request: Any) -> tuple[list[int], list[int]]:
    """Return a request's prompt and output, up to the last pass that SGLang has recorded."""
    return list(request.origin_input_ids), list(request.output_ids)


def goes_on_exactly(request: Any) -> None:
    """Mark a request so that its text gets no token that its loop did not write."""
    setattr(request, JUDGED, True)


def take_back(result: Any, request: Any, *_: Any) -> None:
    """Take back the last token of a retracted text.

    The pass that reads the text again writes one token. It must write this token (``held``) again, not a further one. If
    SGLang keeps values per token, this token would appear twice; then SGLang's own token stays.
    """
    output = request.output_ids
    if getattr(request, JUDGED, False) and output and not request.return_logprob:
        last = int(output.pop())
        setattr(request, HELD, (len(output), last))


def held(request: Any) -> int | None:
    """Return the token that was taken back, if the request's text now ends right before it."""
    place, token = getattr(request, HELD, (-1, None))
    return token if place == len(request.output_ids) else None


def budget_of(params: Any) -> int:
    """Return the most tokens that a request may write in all."""
    return ENDLESS if params.max_new_tokens is None else int(params.max_new_tokens)


def seed_of(params: Any) -> int | None:
    seed: int | None = params.sampling_seed
    return seed


def ends_of(params: Any, stop_ids: frozenset[int]) -> frozenset[int]:
    """Return the tokens that end a request's text."""
    return frozenset() if params.ignore_eos else stop_ids | frozenset(params.stop_token_ids or ())


def constrained(params: Any) -> bool:
    """Return whether a grammar constrains the request's tokens."""
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    return any(getattr(params, kind, None) is not None for kind in kinds)


def tell(output: Any, requests: int, key: str, values: Mapping[int, Any]) -> None:
    """Add lists, by request, to a pass's result, before the values already there under this key."""
    info = output.customized_info or {}
    there = info.get(key) or [None] * requests
    column = [[*(values.get(i) or ()), *(own or ())] or None for i, own in enumerate(there)]
    output.customized_info = {**info, key: column}


class Verifying:
    """One call of ``eagle_sample``: the drafts of a batch, and the target's logits for them."""

    def __init__(self, verify_input: Any, batch: Any, output: Any, grammar_mask: Any) -> None:
        self.verify_input, self.batch = verify_input, batch
        self.output, self.grammar_mask = output, grammar_mask
        self.idle = bool(batch.forward_mode.is_idle())
        self.requests: Sequence[Any] = batch.reqs
        self.n: int = verify_input.draft_token_num

    @property
    def tokens(self) -> Tensor:
        """[requests, n], starting with the last token of each text."""
        found: Tensor = self.verify_input.draft_token
        return found.reshape(len(self.requests), self.n)

    @property
    def links(self) -> tuple[Tensor, Tensor]:
        """[requests, n] each: the first child, and the next sibling."""
        return self.verify_input.retrieve_next_token, self.verify_input.retrieve_next_sibling

    def length(self, request: int) -> int:
        """Return the length of a request's text; its last token is the tree's root and not in the KV cache yet."""
        return int(self.batch.seq_lens[request]) + 1

    def first_paths(self) -> list[list[int]]:
        """Return, for each tree, the path of first children from the root on, up to the last proposed node."""
        proposed = self.proposed(trees.parents_of(*self.links))
        real = None if proposed is None else proposed.tolist()
        found = []
        for i, child in enumerate(self.links[0].tolist()):
            path = [0]
            while (node := child[path[-1]]) >= 0 and (real is None or real[i][node]):
                path.append(node)
            found.append(path)
        return found

    @property
    def logits(self) -> Tensor:
        """[requests * n, vocabulary]"""
        found: Tensor = self.output.next_token_logits
        return found

    @property
    def loops(self) -> dict[int, Any]:
        """By request, the loop that judges its draft; requests that SGLang verifies are left out."""
        found = getattr(self.verify_input, LOOPS, None) or ()
        return {i: loop for i, loop in enumerate(found) if loop is not None}

    @contextmanager
    def ending(self, ends: Mapping[int, int]) -> Iterator[None]:
        """Cut the trees of these requests after the given node, during the call."""
        held = self.verify_input.retrieve_next_token
        if ends:
            rows, nodes = (on(list(some), held.device) for some in (ends, ends.values()))
            cut = held.clone()
            cut[rows, nodes] = -1
            self.verify_input.retrieve_next_token = cut
        try:
            yield
        finally:
            self.verify_input.retrieve_next_token = held

    def tell(self, key: str, values: Mapping[int, Any]) -> None:
        """Add lists, by request, to this pass's result."""
        tell(self.output, len(self.requests), key, values)

    def show(self, logits: Tensor) -> None:
        """Replace the logits that SGLang uses from here on."""
        self.output.next_token_logits = logits

    @contextmanager
    def already_cut(self, requests: Sequence[int]) -> Iterator[None]:
        """Keep SGLang from applying top-p to these requests, whose logits are already cut to what may be drawn.

        Min-p has removed mass, and a second top-p would cut its share from the smaller rest.
        """
        info = self.batch.sampling_info
        true = info.top_ps
        if requests:
            info.top_ps = true.index_fill(0, on(requests, true.device), 1.0)
        try:
            yield
        finally:
            info.top_ps = true

    def settle(self) -> Tensor:
        """Apply penalties, biases and grammar to the logits in place, and return the original logits.

        ``eagle_sample`` will do the same, but a rule needs the adjusted logits first. Give ``eagle_sample``
        the original logits, so that nothing is applied twice.
        """
        info, n, logits = self.batch.sampling_info, self.n, self.logits
        additive, scaling = info.acc_additive_penalties, info.acc_scaling_penalties
        adjustments = (additive, scaling, info.logit_bias)
        # a grammar's mask alone needs no copy: applying it twice changes nothing
        raw = logits if all(one is None for one in adjustments) else logits.clone()
        if additive is not None:
            logits.add_(additive.repeat_interleave(n, 0))
        if scaling is not None:
            from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

            apply_scaling_penalties(logits, scaling.repeat_interleave(n, 0))
        if info.logit_bias is not None:
            logits.add_(info.logit_bias.repeat_interleave(n, 0))
        if self.grammar_mask is not None:
            self.grammar_mask.apply(logits)
        return raw

    def takes_the_likeliest(self) -> bool:
        """Return whether SGLang takes the argmax: all requests are greedy, or it cannot sample on this device."""
        from sglang.srt.speculative import eagle_utils as theirs

        greedy = bool(self.batch.sampling_info.is_all_greedy)
        on = {f"is_{name}": getattr(theirs, f"_is_{name}") for name in ("cpu", "hip", "xpu")}
        if not compat.since("0.5.22"):
            return greedy or any(on.values())
        on["use_rejection_sampling"] = theirs.get_spec().speculative_use_rejection_sampling
        return bool(theirs._verify_uses_greedy(is_all_greedy=greedy, **on))

    def coins(self) -> Tensor:
        """Return random numbers [requests, n] that SGLang itself does not use."""
        n, seed = self.n, self.batch.sampling_info.sampling_seed
        if seed is None:
            return torch.rand(len(self.requests), n, device=self.logits.device)
        from sglang.srt.speculative.eagle_utils import _seeded_verify_coins

        where = {"seq_lens": self.batch.seq_lens, "device": self.logits.device}
        drawn: Tensor
        drawn, *_ = _seeded_verify_coins(sampling_seed=seed, draft_token_num=2 * n + 1, **where)
        return drawn[:, n + 1 :]  # after those that SGLang uses

    def proposed(self, parents: Tensor) -> Tensor | None:
        """Return which nodes a drafter really proposed, bool [requests, n]; None means all.

        SGLang's own NGRAM pads a tree with token 0 under the root, so a drafted 0 there counts as padding.
        """
        from sglang.srt.speculative.spec_info import SpecInputType

        counts = getattr(self.verify_input, DRAFTED, None)
        if counts is not None:
            own: Tensor = torch.arange(parents.shape[1], device=parents.device) < counts[:, None]
            return own
        if self.verify_input.spec_input_type != SpecInputType.NGRAM_VERIFY:
            return None
        return ~((parents == 0) & (self.tokens == 0))


def reads_verification(runner: Any) -> bool:
    """Return whether states can be read in verifying passes: the part ``probe`` is on, no CUDA graphs, one rank."""
    return eager(runner) and bool(getattr(runner, READING, False)) and not shares_passes(runner)


def tell_server_info(state: Any, key: str, value: Any) -> None:
    """Add an entry to what /server_info reports about a scheduler."""
    state.internal_state[key] = value


def algorithm() -> str:
    """Return the server's speculative algorithm; "" without one."""
    from sglang.srt.runtime_context import get_spec

    return str(get_spec().speculative_algorithm or "")


def share_rules(runner: Any, rules: Any) -> None:
    """Store the rules on the runner, where the drafter of the same process finds them."""
    setattr(runner, RULES, rules)


def rules_of(runner: Any) -> Any:
    """Return the rules that ``share_rules`` stored; None if the part ``verification`` is off."""
    return getattr(runner, RULES, None)


def is_target(runner: Any) -> bool:
    return not runner.is_draft_worker


def place(runner: Any) -> tuple[str, str | None, str]:
    """Return path, revision and tokenizer of a runner's model."""
    args = runner.server_args
    return args.model_path, args.revision, args.tokenizer_path or args.model_path


def vocabulary(runner: Any) -> int:
    return int(runner.model_config.vocab_size)


def layers(runner: Any) -> int:
    return int(runner.model_config.num_hidden_layers)


def width(runner: Any) -> int:
    return int(runner.model_config.hidden_size)


def stop_ids(runner: Any) -> frozenset[int]:
    return frozenset(runner.model_config.hf_eos_token_id or ())


def device(runner: Any) -> torch.device:
    found: torch.device = next(runner.model.parameters()).device
    return found


def embeddings(runner: Any) -> Callable[[Tensor], Tensor]:
    """Return a look-up of input embeddings; all ranks must ask it for the same rows."""
    try:
        table = runner.model.get_input_embeddings()
    except AttributeError:
        table = getattr(getattr(runner.model, "model", None), "embed_tokens", None)
    if table is None:
        raise UserError(
            f"{type(runner.model).__name__} does not expose its input embeddings, which ARC"
            " and AdaPLD need: use another rule, or prompt_lookup or suffix"
        )

    def rows(ids: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = table(ids)
        return found.float()

    return rows


def on(values: Sequence[int], where: torch.device) -> Tensor:
    """Return a small tensor on a device without waiting for the work running there."""
    made = torch.tensor(values, dtype=torch.long)
    made = made.pin_memory() if where.type == "cuda" else made
    return made.to(where, non_blocking=True)


def eager(runner: Any) -> bool:
    """Return whether passes run without CUDA graphs."""
    return device(runner).type == "cpu" or bool(runner.server_args.disable_cuda_graph)


def keeps_states(runner: Any) -> bool:
    """Return whether every pass keeps the last layer's states (``--enable-return-hidden-states``)."""
    return bool(runner.server_args.enable_return_hidden_states)
