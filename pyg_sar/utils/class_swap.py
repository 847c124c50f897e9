"""Joint classes: an object of a user's class becomes one of another kind, too.

As ``torch.distributed.fsdp.fully_shard`` does: the object stays what it is, and whatever a program
does to it later is done to what computes. A module around it would silently ignore what it forgot
to pass on. A joint class bears the name of the user's class.
"""

from __future__ import annotations

import copyreg
import inspect
from typing import Any, TypeVar

T = TypeVar('T')


class ClassSwap(type):
    """``Kind(object, ...)`` converts an object; a joint class constructs one of the plain class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Of a kind the object itself, of a joint class a new object of the plain class."""
        return _called(cls)(*args, **kwargs)

    def __setattr__(cls, name: str, value: Any) -> None:
        """Sets an attribute, as by ``type(self).count += 1``: of a joint class on the plain one."""
        type.__setattr__(getattr(cls, '_plain_class', cls), name, value)

    def __delattr__(cls, name: str) -> None:
        """Deletes one there."""
        type.__delattr__(getattr(cls, '_plain_class', cls), name)

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(_called(cls))


def _called(cls: Any) -> Any:
    plain = getattr(cls, '_plain_class', None)
    return cls._convert if plain is None else plain


def plain_class(thing: object) -> type[Any]:
    """The class that the user wrote, of an object whose class may be a joint one."""
    return getattr(type(thing), '_plain_class', None) or type(thing)


def name_of(thing: object) -> str:
    """The name of :func:`plain_class`, for messages."""
    return plain_class(thing).__name__


def become(thing: T, kind: Any) -> T:
    """Gives an object a class that is of a kind, too, and returns the object."""
    # A user's own __setattr__ is for attributes.
    object.__setattr__(thing, '__class__', joint_class(kind, type(thing)))
    return thing


_classes: dict[tuple[Any, Any], Any] = {}


def joint_class(kind: Any, cls: Any) -> Any:
    """``Net(kind, Net)`` for a class ``Net``, the same at every call."""
    if (kind, cls) not in _classes:
        names = {name: vars(cls).get(name) for name in ('__module__', '__doc__')}
        names |= {'__qualname__': cls.__qualname__, '_made_of': (kind, cls)}
        names['_plain_class'] = getattr(cls, '_plain_class', cls)
        new_class = _meta_class(kind, cls)(cls.__name__, (kind, cls), names)
        _classes.setdefault((kind, cls), new_class)  # another thread may have been faster
    return _classes[kind, cls]


def _meta_class(kind: Any, cls: Any) -> Any:
    """The class of the joint class: that of an abstract base class, for example, is of both."""
    meta, of_cls = type(kind), type(cls)
    if not issubclass(meta, of_cls):
        meta = of_cls if issubclass(of_cls, meta) else type(meta.__name__, (meta, of_cls), {})
    # pickle would look for a joint class by its name, and find the plain one.
    copyreg.pickle(meta, _reduced)
    return meta


def _reduced(cls: Any) -> Any:
    made_of = vars(cls).get('_made_of')
    return cls.__qualname__ if made_of is None else (joint_class, made_of)
