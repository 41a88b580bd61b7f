"""SGLang's private names: its versions, where hooks go, and what requests and answers carry.

``compat_reading`` has the names for reading prompt states, ``compat_speculative`` those for verification and drafting.

Each hook target was looked up in the wheel of every version in ``KNOWN``. Other versions are refused, because
a moved name would go unnoticed until something broke. For a new SGLang: add it to ``KNOWN``, run
``make test-sglang`` with it, and fix what fails.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semspec.errors import UserError
from semspec.storage.screen import last_line

KNOWN = ("0.5.14", "0.5.15", "0.5.15.post1", *(f"0.5.{patch}" for patch in range(16, 24)))

Kind = Literal["BEFORE", "AFTER", "AROUND", "REPLACE"]


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of SGLang, and our function hooked onto it."""

    target: str  # dotted, without ``sglang.srt.``
    function: Callable[..., Any]
    kind: Kind

    @property
    def path(self) -> str:
        return f"sglang.srt.{self.target}"


# ---- versions, and checks that hooks were applied ---------------------------------------------


def version() -> str:
    import sglang

    return str(sglang.__version__)


def check_version() -> None:
    """Raise UserError for an SGLang version that is not in ``KNOWN``."""
    if (found := version()) not in KNOWN:
        raise UserError(
            f"it does not support SGLang {found}, only {', '.join(KNOWN)}: install one of"
            " these, or a newer semspec, or start the server without the plugin"
        )


def since(release: str) -> bool:
    """Return whether this SGLang is that release or a later one."""
    own, other = ([int(n) for n in re.findall(r"\d+", one)] for one in (version(), release))
    return own >= other


def runs_models() -> bool:
    """Return whether this process has imported the scheduler; placing a hook would import the hook's module."""
    return "sglang.srt.managers.scheduler" in sys.modules


def apply(hooks: Sequence[Hook]) -> None:
    """Register hooks, and end the process if SGLang fails to apply one (SGLang itself only logs that).

    SGLang applies hooks right after loading the plugins, so the check is appended to that call.
    Raise UserError if a target is hooked already.
    """
    if not hooks:
        return
    hooks = one_for_each(hooks)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    twice = [h.target for h in hooks if h.path in HookRegistry._patched]
    if twice:  # SGLang would silently ignore a second hook there
        raise UserError(
            f"{', '.join(twice)} are already hooked: load semspec's plugin only once, and first"
        )
    for hook in hooks:
        HookRegistry.register(hook.path, hook.function, HookType[hook.kind])
    applied = HookRegistry.apply_hooks

    def apply_and_check() -> None:
        applied()
        if missed := missing(hooks):
            raise last_line(
                f"semspec's SGLang plugin: SGLang {version()} did not apply the hooks on"
                f" {', '.join(missed)}: report this, and start the server without the plugin"
                " for now"
            )

    HookRegistry.apply_hooks = apply_and_check


def one_for_each(hooks: Sequence[Hook]) -> list[Hook]:
    """Merge hooks on the same target into one, because SGLang would silently ignore a second one."""
    found: dict[str, list[Hook]] = {}
    for hook in hooks:
        found.setdefault(hook.path, []).append(hook)

    def after(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        def each(result: Any, *args: Any, **kwargs: Any) -> Any:
            for function in functions:
                changed = function(result, *args, **kwargs)
                result = result if changed is None else changed
            return result

        return each

    single = []
    for own in found.values():
        assert len(own) == 1 or {hook.kind for hook in own} == {"AFTER"}, own[0].target
        function = own[0].function if len(own) == 1 else after([hook.function for hook in own])
        single.append(Hook(own[0].target, function, own[0].kind))
    return single


def missing(hooks: Sequence[Hook]) -> list[str]:
    """Return the targets whose hook is not in place, because the function there is not a wrapper."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    def wrapped(hook: Hook) -> bool:
        try:
            found = pkgutil.resolve_name(hook.path)
        except (ImportError, AttributeError):
            return False
        return hook.kind == "REPLACE" or hasattr(found, "__wrapped__")

    return [h.target for h in hooks if h.path not in HookRegistry._patched or not wrapped(h)]


# ---- requests as they arrive --------------------------------------------------------------------

ARRIVING = "managers.io_struct.GenerateReqInput.normalize_batch_and_arguments"
CHECKED = "sampling.sampling_params.SamplingParams.verify"  # its ValueError becomes a 400


def checking(check: Callable[[Any], None]) -> Callable[..., None]:
    """Return a hook that checks the custom parameters of every arriving request."""
    return lambda result, params, *args, **kwargs: check(params.custom_params)


def arriving(changed: Callable[[Any, Any], dict[str, Any] | None]) -> Callable[..., None]:
    """Return a hook that may replace a request's sampling parameters, depending on its labels."""

    def hook(request: Any, *args: Any, **kwargs: Any) -> None:
        params, labels = request.sampling_params, request.custom_labels
        if not isinstance(params, list) and (replaced := changed(params, labels)) is not None:
            request.sampling_params = replaced

    return hook


# ---- attributes that we set on SGLang's objects -------------------------------------------------

LOOPS = "semspec_loops"  # on our drafters' verify inputs: each request's judging loop, or None
READING = "semspec_reading"  # on the target's runner: its passes can be read


# ---- values returned with an answer -------------------------------------------------------------

KEPT = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
KEPT += "._maybe_collect_customized_info"


class _Since(list[Any]):
    """A request's values, per pass a list or None; slicing returns all that were not handed out yet.

    SGLang slices by tokens, as if there were one value per token, but a verifying pass adds several tokens.
    """

    handed = 0

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, slice):
            return super().__getitem__(at)
        new, self.handed = [*self][self.handed :], len(self)
        return [value for values in new for value in values or ()]


def by_pass(key: str, every: Callable[[], bool] = lambda: False) -> Callable[..., None]:
    """Return a hook on ``KEPT`` that hands out a key's values pass by pass, not token by token.

    ``every``: give the key to all requests from their prompts on. Otherwise SGLang gives a request without the key one None
    per token if another request of its batch has values.
    """

    def hook(result: Any, processor: Any, index: int, req: Any, logits: Any) -> None:
        info = req.customized_info
        if info is None or key not in info:
            if every():
                req.customized_info = {key: _Since(), **(info or {})}
        elif not isinstance(info[key], _Since):
            info[key] = _Since(info[key])

    return hook
