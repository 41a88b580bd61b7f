"""Heavy dependencies, imported on first use.

    from semspec.deferred import Tensor, torch

Discovery imports all plugins; without this, ``--help`` or a misspelt option would wait seconds for torch.
Use ``Tensor`` only in annotations, and ``torch.Tensor`` in code that runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import hydra as hydra
    import hydra.core.config_store
    import hydra.core.hydra_config
    import hydra.core.override_parser.overrides_parser
    import hydra.errors
    import safetensors.torch as tensor_files
    import scipy.special as special
    import torch as torch
    import torch.nn.functional as functional
    from torch import Tensor as Tensor
else:

    class _Deferred:
        """A module that is imported when one of its attributes is first used."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(import_module(self.__name__), attribute)
            setattr(self, attribute, found)  # later uses cost no more than a module's attribute
            return found

    hydra = _Deferred("hydra")
    tensor_files = _Deferred("safetensors.torch")
    special = _Deferred("scipy.special")
    torch = _Deferred("torch")
    functional = _Deferred("torch.nn.functional")
    Tensor = Any


def load_torch() -> None:
    """Import torch now, so that its seconds do not count as a problem's."""
    import_module("torch")


__all__ = ["Tensor", "functional", "hydra", "load_torch", "special", "tensor_files", "torch"]
