"""Methods of the contract that a servicer does not fill.

A generated base class answers them with a bare UNIMPLEMENTED, outside of everything that wraps our
handlers. Ours answer with the reason NOT_IMPLEMENTED and the method's name as the feature, so that
a client can tell "not yet" from "wrong address".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from services.mesh.errors import NotImplementedYet


def filled(behaviour: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The servicer's own method, or one that refuses if only the generated base has it."""
    if not _is_generated(behaviour):
        return behaviour

    async def refuse(request: Any, context: Any) -> NoReturn:
        raise NotImplementedYet(name)

    return refuse


def _is_generated(behaviour: Callable[..., Any]) -> bool:
    function = getattr(behaviour, "__func__", behaviour)
    return str(getattr(function, "__module__", "")).endswith("_pb2_grpc")
