"""The shape of each script's answer, as the head of its Lua file describes it.

An answer with our nonce is an answer to our request, and may still be nonsense, because of a
proxy, a server that only resembles Redis, or a key that other programs have damaged. So the port
compares each answer with its shape, once, before anything unpacks it. A `TypeError` after that is
a mistake of ours, and is not taken for trouble with Redis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

Shape = Callable[[Any, int], bool]
"""Returns whether an answer, or a part of it, has its shape. The number of KEYS says how many
locks the script was asked about."""

_DIGITS = re.compile(rb"-?\d{1,20}")
_LATEST = 10**17
"""µs since the epoch: the year 5138. Python has no dates much later than that."""
_PERMITS, _EXTENDED_TIMESTAMP, _OF_SEVERAL = 8, 5, 5
"""KEYS of one lock: `Keys.permits()`; and of one of several in a script."""


def _any(value: Any, keys: int) -> bool:  # noqa: ARG001
    return True


def _text(value: Any, keys: int) -> bool:  # noqa: ARG001
    return type(value) is bytes


def _ascii(value: Any, keys: int) -> bool:  # noqa: ARG001
    return type(value) is bytes and value.isascii()


def _integer(value: Any, keys: int) -> bool:  # noqa: ARG001
    return type(value) is int and -(2**63) <= value < 2**63


def _number(value: Any, keys: int) -> bool:
    """An integer, or its text: Lua has no integers of 64 bits, so the scripts write large ones as
    text."""
    if type(value) is bytes:
        return _DIGITS.fullmatch(value) is not None
    return _integer(value, keys)


def _time(value: Any, keys: int) -> bool:
    if type(value) is int:
        return 0 <= value < _LATEST
    return _number(value, keys) and 0 <= int(value) < _LATEST


def _flag(value: Any, keys: int) -> bool:  # noqa: ARG001
    return type(value) is int and value in (0, 1)


def _score_or_none(value: Any, keys: int) -> bool:  # noqa: ARG001
    """The score of a member of a sorted set, or an empty text."""
    try:
        return type(value) is bytes and (value == b"" or float(value) == float(value))
    except ValueError:
        return False


def _done(value: Any, keys: int) -> bool:  # noqa: ARG001
    """Only the code."""
    return len(value) == 1


def _free(value: Any, keys: int) -> bool:  # noqa: ARG001
    """The answer of most acquires, so it is compared without further calls. The fencing token is
    the time of acquiring, too."""
    return len(value) == 2 and type(value[1]) is int and 0 <= value[1] < _LATEST


def _plain_lock(value: Any, keys: int) -> bool:  # noqa: ARG001
    """A value and its pttl: most of many locks, so they are compared without further calls."""
    return (
        type(value) is list
        and len(value) == 2
        and (value[0] is None or type(value[0]) is bytes)
        and type(value[1]) is int
        and -(2**63) <= value[1] < 2**63
    )


def _or_nil(shape: Shape) -> Shape:
    return lambda value, keys: value is None or shape(value, keys)


def _either(one: Shape, other: Shape) -> Shape:
    return lambda value, keys: one(value, keys) or other(value, keys)


def _one_of(per: int) -> Shape:
    """The number of a lock that the script was asked about; each lock has so many KEYS."""
    return lambda value, keys: type(value) is int and 1 <= value <= keys // per


def _list(
    *parts: Shape, then: tuple[Shape, ...] = (), least: int = 0, per: int = 0, besides: int = 0
) -> Shape:
    """A list that begins with `parts`. Behind them comes `then`, at least `least` times. With
    `per`, it comes once for each `per` KEYS; `besides` KEYS don't count."""

    def fixed(value: Any, keys: int) -> bool:
        if type(value) is not list or len(value) != len(parts):
            return False
        return all(its(part, keys) for part, its in zip(value, parts, strict=True))

    def growing(value: Any, keys: int) -> bool:
        if type(value) is not list:
            return False
        times, odd = divmod(len(value) - len(parts), len(then))
        if odd or times < least or (per and times * per + besides != keys):
            return False
        if not all(its(part, keys) for part, its in zip(value, parts, strict=False)):
            return False
        return all(
            all(map(its, value[start :: len(then)], repeat(keys)))  # lists of locks are long
            for start, its in enumerate(then, start=len(parts))
        )

    return growing if then else fixed


def _by_code(shapes: Mapping[int, Shape]) -> Shape:
    """A list whose first part is a number; the number says what the rest is."""

    def shape(value: Any, keys: int) -> bool:
        if type(value) is not list or not value or type(value[0]) is not int:
            return False
        its = shapes.get(value[0])
        return its is not None and its(value, keys)

    return shape


def _claim(a: Shape, b: Shape) -> Shape:
    return _list(_flag, _text, _time, _text, a, b, _text, _text)


_CLAIMS = {
    b"again": _claim(_any, _any),
    b"busy": _claim(_text, _number),
    b"early": _claim(_number, _any),
    b"paused": _claim(_any, _any),
    b"run": _claim(_number, _time),
    b"skipped": _claim(_any, _any),
    b"taken": _claim(_number, _any),
}


def _ledger_claim(value: Any, keys: int) -> bool:
    """A list whose second part is a word; the word says what the rest is."""
    what = value[1] if type(value) is list and len(value) > 1 else None
    its = _CLAIMS.get(what) if type(what) is bytes else None
    return its is not None and its(value, keys)


_MAYBE = _or_nil(_text)
_REFUSED = _list(_flag, _MAYBE, _MAYBE)
_HEIRS = _list(then=(_ascii, _number))
_GRANTED = _list(_flag, _or_nil(_number), _time)
_CONFIRMED = _list(_flag, _or_nil(_number), _time, _flag)
_HOLDER = (_MAYBE, _integer, _time, _integer, _ascii, _MAYBE)
_LOCK = _either(
    _plain_lock,
    _list(_MAYBE, _integer, _integer, _integer, _text, then=(_list(_text, _integer, _text),)),
)
_WITHDRAWN = _list(_integer, _text)
_OTHER_KIND = _list(_integer, _ascii)
_AGAIN = _list(_integer, _ascii)
_PAUSED = _list(_integer, _integer, _time, _ascii)
_RELEASE = _by_code(
    {0: _REFUSED, 1: _either(_done, _list(_flag, _time, _HEIRS))},
)
_ADOPT = _by_code({-2: _OTHER_KIND, 0: _REFUSED, 1: _GRANTED})
_DONE_OR_REFUSED = _by_code({0: _REFUSED, 1: _done})


def _extend(per: int, besides: int = 2) -> Shape:
    refused = (_list(_one_of(per), _MAYBE, _MAYBE),)
    none = _list(_flag, then=refused, per=per, besides=besides)
    return _by_code({0: none, 1: _list(_flag, then=refused)})


def _multi_acquire(besides: int) -> dict[int, Shape]:
    return {
        -1: _list(_integer, _text, _one_of(_OF_SEVERAL)),
        0: _list(_integer, *_HOLDER, _one_of(_OF_SEVERAL)),
        1: _either(
            _free,
            _list(_integer, _time, then=(_number,), per=_OF_SEVERAL, besides=besides),
        ),
        2: _AGAIN,
    }


_MUTEX_ACQUIRE = {
    -1: _WITHDRAWN,
    0: _list(_integer, *_HOLDER),
    1: _either(_free, _either(_GRANTED, _CONFIRMED)),
    2: _AGAIN,
}
_RECORD_ACQUIRE = {
    -1: _WITHDRAWN,
    0: _either(_list(_integer, *_HOLDER), _list(_integer, *_HOLDER, _MAYBE)),
    1: _either(_either(_GRANTED, _CONFIRMED), _list(_flag, _number, _time, _or_nil(_flag), _text)),
    2: _AGAIN,
    3: _list(_integer, _text),
}

SHAPES: dict[str, Shape] = {
    "count": _integer,
    "fence_raise": _list(_integer, _time, _number),
    "inspection_count": _MAYBE,
    "inspection_index": _list(_time, _score_or_none, then=(_text, _or_nil(_LOCK))),
    "inspection_history": _list(_MAYBE, then=(_text,)),
    "inspection_locks": _list(_time, then=(_LOCK,), least=1),
    "inspection_page": _list(_time, _integer, then=(_text, _or_nil(_LOCK))),
    "inspection_processes": _list(then=(_integer,), per=1),
    "inspection_scan": _list(_number, _list(then=(_text,))),
    "inspection_urgent": _list(_integer, then=(_integer, _text)),
    "inspection_waiters": _list(_time, then=(_list(_text, _text, _MAYBE),)),
    "inspection_written": _list(then=(_list(_MAYBE, _MAYBE),), per=1),
    "ledger_claim": _ledger_claim,
    "ledger_finish": _MAYBE,
    "ledger_known": _list(_time, then=(_list(_text, _text, _integer, _text, _flag),), per=2),
    "ledger_pause": _any,
    "ledger_read": _list(_time, then=(_list(*[_text] * 6, then=(_text, _MAYBE)),), per=2),
    "ledger_request": _text,
    "ledger_resume": _flag,
    "multi_acquire": _by_code(_multi_acquire(besides=2)),
    "multi_acquire_guarded": _by_code({**_multi_acquire(besides=3), 4: _PAUSED}),
    "multi_release": _by_code({0: _list(_flag, _MAYBE, _MAYBE, _one_of(_OF_SEVERAL)), 1: _done}),
    "lock_mend": _list(then=(_text,)),
    "mutex_acquire": _by_code(_MUTEX_ACQUIRE),
    "mutex_acquire_guarded": _by_code({**_MUTEX_ACQUIRE, 4: _PAUSED}),
    "mutex_adopt": _ADOPT,
    "mutex_clear": _flag,
    "mutex_expire": _by_code({0: _list(_flag, _MAYBE), 1: _done}),
    "mutex_extend": _either(_extend(1), _extend(2)),
    "mutex_holder": _or_nil(_list(_text, _integer, _time)),
    "mutex_put_back": _extend(2, 3),
    "mutex_release": _RELEASE,
    "mutex_write_down": _integer,
    "permits_acquire": _by_code(
        {
            -2: _OTHER_KIND,
            -1: _WITHDRAWN,
            0: _list(_integer, *_HOLDER, _integer),
            1: _either(_free, _either(_GRANTED, _CONFIRMED)),
            2: _AGAIN,
        }
    ),
    "permits_adopt": _ADOPT,
    "permits_clear": _list(then=(_flag,), per=1, besides=_PERMITS),
    "permits_extend": _either(_extend(2), _extend(3)),
    "permits_holders": _list(_time, then=(_list(_MAYBE, _integer, _text),)),
    "permits_release": _RELEASE,
    "permits_write_down": _integer,
    "permits_downgrade": _DONE_OR_REFUSED,
    "queue_present": _list(then=(_integer,)),
    "record_acquire": _by_code(_RECORD_ACQUIRE),
    "record_acquire_guarded": _by_code({**_RECORD_ACQUIRE, 4: _PAUSED}),
    "record_delete": _any,
    "record_first": _text,
    "record_get": _MAYBE,
    "record_release": _RELEASE,
    "record_set": _any,
    "record_write": _DONE_OR_REFUSED,
    "server_time": _time,
    "timestamp_acquire": _by_code(
        {-1: _WITHDRAWN, 0: _list(_flag, _text, _number, _time), 1: _list(_flag, _time)}
    ),
    "timestamp_adopt": _ADOPT,
    "timestamp_clear": _flag,
    "timestamp_extend": _extend(_EXTENDED_TIMESTAMP, 0),
    "timestamp_holder": _or_nil(_list(_text, _number, _time)),
    "timestamp_release": _RELEASE,
}
"""The shape of the answer, by the name of the script."""
