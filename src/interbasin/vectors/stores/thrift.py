"""Thrift's compact protocol, as far as the footers and page headers of Parquet files need it.

A struct is a mapping from field numbers to pairs of type and value; a list is a pair of type and values. pyarrow reads
and writes footers only with the file around them, and going on with a file needs them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["BINARY", "I32", "I64", "LIST", "STRUCT", "Struct", "decoded", "encoded", "of_structs"]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
Struct: TypeAlias = dict[int, tuple[int, Any]]


def encoded(struct: Mapping[int, tuple[int, Any]]) -> bytes:
    """The bytes of a struct. A struct in it, or in a list, may be given as bytes that are encoded already.

    Example:
        >>> encoded({1: (I32, 3), 3: (BINARY, b"ab")})
        b'\\x15\\x06(\\x02ab\\x00'
        >>> decoded(_)
        ({1: (5, 3), 3: (8, b'ab')}, 7)
    """
    made, last = bytearray(), 0
    for number in sorted(struct):
        kind, value = struct[number]
        step = number - last
        made += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _varint(_zigzag(number))
        if kind not in (TRUE, FALSE):
            made += _value(kind, value)
        last = number
    made.append(0)
    return bytes(made)


def decoded(content: bytes, place: int = 0) -> tuple[Struct, int]:
    """The struct that begins at ``place``, and the place behind it."""
    found: Struct = {}
    last = 0
    while (head := content[place]) != 0:
        kind, step, place = head & 15, head >> 4, place + 1
        if step:
            last += step
        else:
            raw, place = _read_varint(content, place)
            last = _unzigzag(raw)
        if kind in (TRUE, FALSE):
            found[last] = kind, kind == TRUE
        else:
            value, place = _read_value(content, place, kind)
            found[last] = kind, value
    return found, place + 1


def of_structs(structs: Sequence[Any]) -> tuple[int, Any]:
    """A field that is a list of structs."""
    return LIST, (STRUCT, list(structs))


def _value(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return _varint(_zigzag(value))
    if kind == BINARY:
        return _varint(len(value)) + bytes(value)
    if kind in (LIST, SET):
        item, values = value
        head = bytes([len(values) << 4 | item]) if len(values) < 15 else bytes([0xF0 | item]) + _varint(len(values))
        return head + b"".join(_value(item, one) for one in values)
    if kind == STRUCT:
        return bytes(value) if isinstance(value, bytes) else encoded(value)
    if kind in (TRUE, FALSE):  # in a list
        return bytes([TRUE if value else FALSE])
    if kind in (BYTE, DOUBLE):
        return bytes(value)
    raise ValueError(f"Thrift type {kind}, which no footer of Parquet has")


def _read_value(content: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind in (I16, I32, I64):
        raw, place = _read_varint(content, place)
        return _unzigzag(raw), place
    if kind == BINARY:
        length, place = _read_varint(content, place)
        return content[place : place + length], place + length
    if kind in (LIST, SET):
        item, count, place = content[place] & 15, content[place] >> 4, place + 1
        if count == 15:
            count, place = _read_varint(content, place)
        values = []
        for _ in range(count):
            value, place = _read_value(content, place, item)
            values.append(value)
        return (item, values), place
    if kind == STRUCT:
        return decoded(content, place)
    if kind in (TRUE, FALSE):
        return content[place] == TRUE, place + 1
    if kind in (BYTE, DOUBLE):
        length = 1 if kind == BYTE else 8
        return content[place : place + length], place + length
    raise ValueError(f"Thrift type {kind}, which no footer of Parquet has")


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (content[place] & 127) << shift
        place += 1
        if content[place - 1] < 128:
            return number, place
        shift += 7


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 ^ -(number & 1)
