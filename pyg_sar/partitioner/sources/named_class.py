"""Classes that a command line names, with their arguments: ``module.Class(name=Cora)``."""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any

_CALL = re.compile(r'((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?:\((.*)\))?')


def named_class(text: str, module: str, kind: type = object) -> tuple[type[Any], dict[str, Any]]:
    """The class that a text names, and the arguments that it gives.

    Args:
        text: ``'Class'``, ``'module.Class'`` or ``'module.Class(name=Cora, num_nodes=100)'``.
        module: Where a class without a module is.
        kind: What it must be a subclass of.

    Raises:
        ValueError: If there is no such class, or the arguments are not literals by name.
    """
    found = _CALL.fullmatch(text)
    what = 'a class' if kind is object else f'a subclass of {kind.__name__}'
    if found is None:
        raise ValueError(f"expected a class such as 'module.Class(name=Cora)' (got '{text}')")
    try:
        cls = getattr(importlib.import_module(found[1][:-1] or module), found[2], None)
    except ImportError as error:
        raise ValueError(f"expected {what} in '{text}' (got {error})") from error
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        got = 'nothing of that name' if cls is None else repr(cls)
        raise ValueError(f"expected {what} in '{text}' (got {got})")
    return cls, _keyword_arguments(found[3] or '', text)


def _keyword_arguments(text: str, name: str) -> dict[str, Any]:
    """Keyword arguments; their values are literals, or words that stand for strings."""
    try:
        call = ast.parse(f'f({text})', mode='eval').body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError('arguments without a name')
        named = {str(keyword.arg): keyword.value for keyword in call.keywords}
        return {
            k: v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for k, v in named.items()
        }
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"expected arguments such as (name=Cora, num_nodes=100) in '{name}' (got {error})"
        ) from error
