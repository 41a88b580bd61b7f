"""SGLang servers of the embedded pair on this machine's CPU, as the tests start them; for scripts that run in .venv-sglang."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semspec.errors import UserError

if TYPE_CHECKING:
    from tests.support.sglang_servers import Mortal

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"target": (), "draft": ("model.path=embedded/tiny-draft",)}  # options of the launcher


def mortal(role: str, model: str = "", **changes: Any) -> Mortal:
    """Return a server for a role's model that can be started, killed and restarted.

    ``model`` is the folder of another model to use, ``changes`` are arguments of SGLang. Raise UserError if SGLang is missing.
    """
    sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
    from tests.support import sglang_env

    try:
        sglang_env.activate()
        from tests.support.sglang_servers import Mortal
    except ImportError as error:
        raise UserError(f"no SGLang here ({error}): run this by .venv-sglang/bin/python") from error
    folder = Path(tempfile.mkdtemp(prefix=f"semspec-{role}-"))
    options = (f"model.path={model}",) if model else MODELS[role]
    return Mortal(folder, *options, **changes)
