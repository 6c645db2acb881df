"""Damage to a file, drawn from a generator: to bytes wherever they stand, and to what a format says of itself.

A mutation takes the generator and the content of a file and gives the damaged content. Those that know a format return
None for a file that is not of it. `damage` is the only door.
"""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

from tests.fuzz.trees import Other, Tree

from interbasin.vectors.files.parquet_writer import BINARY, I16, I32, I64, LIST, STRUCT, decode, encode

Mutation: TypeAlias = Callable[[Random, bytes], "bytes | None"]
LARGE = 2**21  # bytes; what a mutation makes is never much longer
DEPTH = 100_000  # of brackets: deeper than any parser that calls itself can go


# ---------------------------------------------------------------------- bytes, whatever they mean


def _span(random: Random, content: bytes) -> tuple[int, int]:
    """The ends of a stretch of the content: mostly short ones, and often near an end, where headers are."""
    length = min(len(content), random.choice((1, 2, 4, 8, 16, 64, 512)))
    room = len(content) - length
    place = random.choice(
        (random.randint(0, room), min(room, random.randint(0, 64)), max(0, room - random.randint(0, 64)))
    )
    return place, place + length


def flip_bits(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def set_bytes(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4))):
        changed[random.randrange(len(changed))] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
    return bytes(changed)


def overwrite(random: Random, content: bytes) -> bytes:
    start, end = _span(random, content)
    filling = random.choice((b"\0", b"\xff", b"A", None))
    return (
        content[:start]
        + (random.randbytes(end - start) if filling is None else filling * (end - start))
        + content[end:]
    )


def delete(random: Random, content: bytes) -> bytes:
    start, end = _span(random, content)
    return content[:start] + content[end:]


def duplicate(random: Random, content: bytes) -> bytes:
    start, end = _span(random, content)
    return content[:end] + content[start:end] * random.choice((1, 1, 2, 50)) + content[end:]


def insert(random: Random, content: bytes) -> bytes:
    place = _span(random, content)[0]
    return content[:place] + random.randbytes(random.choice((1, 2, 8, 100))) + content[place:]


def truncate(random: Random, content: bytes) -> bytes:
    return content[: random.choice((random.randrange(len(content)), max(0, len(content) - random.randint(1, 16))))]


def append(random: Random, content: bytes) -> bytes:
    return content + random.choice((b"\0" * random.randint(1, 64), random.randbytes(random.randint(1, 64)), content))


def swap_spans(random: Random, content: bytes) -> bytes:
    a, b, c, d = sorted(random.randint(0, len(content)) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def set_integer(random: Random, content: bytes) -> bytes | None:
    """Another whole number in 2, 4 or 8 bytes, the low byte first as all these formats have it."""
    size, letter = random.choice(((2, "H"), (4, "I"), (8, "Q")))
    if len(content) < size:
        return None
    most = 2 ** (8 * size) - 1
    place = min(_span(random, content)[0], len(content) - size)
    (now,) = struct.unpack_from(f"<{letter}", content, place)
    value = random.choice((0, 1, now + 1, now - 1, now * 2, most, most // 2, most // 2 + 1, random.randint(0, most)))
    return content[:place] + struct.pack(f"<{letter}", value & most) + content[place + size :]


BYTES: tuple[Mutation, ...] = (
    flip_bits,
    set_bytes,
    overwrite,
    delete,
    duplicate,
    insert,
    truncate,
    append,
    swap_spans,
    set_integer,
)


# ---------------------------------------------------------------------- JSON

NUMBER = re.compile(rb"-?\b\d+(\.\d+)?([eE][+-]?\d+)?\b")
WORDS = (
    *(b"0", b"1", b"-1", b"2", b"7", b"0.5", b"-0.0", b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity"),
    *(b"9223372036854775807", b"9223372036854775808", b"1" + b"0" * 40, b"1" + b"0" * 5000),
    *(
        b"true",
        b"false",
        b"null",
        b'""',
        b'"text"',
        b'"7"',
        b"[]",
        b"{}",
        b"[0]",
        b'{"a": 1}',
        b'"\\ud800"',
        b'"\\u0000"',
    ),
)
DEEP = (b"[" * DEPTH, b"[" * DEPTH + b"]" * DEPTH, b'{"a":' * DEPTH + b"1" + b"}" * DEPTH)


def change_number_in_text(random: Random, content: bytes) -> bytes | None:
    """Another word where a number stands in text, in JSON or in any other."""
    numbers = [*NUMBER.finditer(content[: 2**16])]
    if not numbers:
        return None
    number = random.choice(numbers)
    digits = number[0].lstrip(b"-")
    next_one = b"%d" % (int(digits) + 1) if digits.isdigit() and len(digits) < 20 else b"3"
    value = random.choice((*WORDS, next_one))
    return content[: number.start()] + value + content[number.end() :]


def change_json(random: Random, content: bytes) -> bytes | None:
    """Something else in the place of one value or key of a JSON document."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    places = [*_places(document)]
    if not places:
        return None
    parent, key = random.choice(places)
    action = random.choice(("replace", "replace", "remove", "rename", "exchange", "twice"))
    if action == "rename" and isinstance(parent, dict):
        parent[random.choice((f"{key}x", "", "__metadata__", "\x1b[31m", "a\nb", str(key).upper()))] = parent.pop(key)
    elif action == "remove":
        del parent[key]
    elif action == "exchange":
        other, another = random.choice(places)
        parent[key], other[another] = other[another], parent[key]
        try:
            json.dumps(document)
        except (ValueError, RecursionError):  # one of them was inside the other
            return None
    else:
        parent[key] = "@here@"
        value = random.choice((*WORDS, *DEEP))
        text = json.dumps(document).encode()
        if action == "twice":
            name = re.search(rb'"[^"]*": "@here@"', text)
            return (
                None
                if name is None
                else text.replace(
                    name[0], name[0].replace(b'"@here@"', value) + b", " + name[0].replace(b'"@here@"', b"1"), 1
                )
            )
        return text.replace(b'"@here@"', value, 1)
    return json.dumps(document).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a document, with every key of it."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


# ---------------------------------------------------------------------- safetensors


def change_safetensors(random: Random, content: bytes) -> bytes | None:
    """Another header, whose length fits or does not."""
    length = int.from_bytes(content[:8], "little")
    if content[8:9] != b"{" or not 0 < length <= len(content) - 8:
        return None
    header, numbers = content[8 : 8 + length], content[8 + length :]
    action = random.choice(("json", "json", "json", "number", "length", "pad", "many", "bytes"))
    if action == "length":
        wrong = random.choice((0, 1, length - 1, length + 1, length + len(numbers), 2**31, 2**32, 2**63, 2**64 - 1))
        return wrong.to_bytes(8, "little") + content[8:]
    if action == "pad":
        header += b" " * random.choice((1, 7, 8, 1000))
    elif action == "many":
        header = _many_entries(random, header)
    elif action == "bytes":
        header = random.choice(BYTES)(random, header) or header
    else:
        header = (change_json if action == "json" else change_number_in_text)(random, header) or header
    return len(header).to_bytes(8, "little") + header + numbers


def _many_entries(random: Random, header: bytes) -> bytes:
    """Thousands of empty tensors behind those that are there; all of different names, or one twice."""
    count, end = random.choice((10, 10_000)), header.rstrip()[:-1]
    start = random.choice((0, 0, 8, 10**9))
    entries = [f'"e{n}":{{"dtype":"F32","shape":[0],"data_offsets":[{start},{start}]}}' for n in range(count)]
    entries += entries[:1] if random.random() < 0.5 else []
    return end + b"," + ",".join(entries).encode() + b"}"


# ---------------------------------------------------------------------- .npy


def change_npy(random: Random, content: bytes) -> bytes | None:
    """Another header of an array, padded as NumPy pads it or not."""
    if not content.startswith(b"\x93NUMPY") or len(content) < 12:
        return None
    wide = content[6:7] != b"\x01"
    begin = 12 if wide else 10
    length = int.from_bytes(content[8:begin], "little")
    header, numbers = content[begin : begin + length], content[begin + length :]
    try:
        fields = ast.literal_eval(header.decode("latin1").strip())
        shape = [int(length) for length in fields["shape"]]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        return None
    action = random.choice(("shape", "shape", "descr", "order", "text", "key", "version", "length"))
    if action == "version":
        return content[:6] + bytes(random.choice(((2, 0), (3, 0), (1, 1), (0, 0), (255, 255)))) + content[8:]
    if action == "length":
        return (
            content[:8] + random.choice((0, 1, length - 1, length + 16, 2**16 - 1)).to_bytes(2, "little") + content[10:]
        )
    if action == "shape":
        if shape and random.random() < 0.7:
            place = random.randrange(len(shape))
            shape[place] = random.choice(
                (0, 1, -1, shape[place] + 1, shape[place] * 2, 2**31, 2**62, 2**64, 10**30, 1.0, True)
            )
        else:
            shape = random.choice(([], [1], [*shape, 1], [1, *shape], shape[::-1], [2**32, 2**32], [1] * 70))
        fields["shape"] = tuple(shape)
    elif action == "descr":
        fields["descr"] = random.choice(
            (
                *(">f4", "<f2", "<f8", "<f16", "<i8", "|u1", "|b1", "<c8", "<U4", "|S8", "|V2", "|O", "<M8[s]"),
                *("", 7, "<f4" * 50, [("a", "<f4"), ("b", "<f4")], [("a", "|O")]),
            )
        )
    elif action == "order":
        fields["fortran_order"] = random.choice((not fields.get("fortran_order"), 1, None, "yes"))
    elif action == "key":
        key = random.choice(list(fields))
        fields[random.choice(("descr", "shape", "more"))] = fields.pop(key)
    text = repr(fields)
    if action == "text":
        text = random.choice(
            (text.replace("(", "(" * 300), text + "()", text[:-1], text.replace(",", ", 1 +", 1), "[" * 5000)
        )
    written = text.encode("latin1", "replace")
    written += b" " * (-(begin + len(written) + 1) % 64) + b"\n"
    return content[:8] + len(written).to_bytes(begin - 8, "little", signed=False)[: begin - 8] + written + numbers


# ---------------------------------------------------------------------- zip archives: .npz, and files of torch.save

# Fields of an entry of the directory and of a local header: name -> place and struct letter.
DIRECTORY = {
    "version": (6, "H"),
    "flags": (8, "H"),
    "method": (10, "H"),
    "checksum": (16, "I"),
    "packed": (20, "I"),
    "plain": (24, "I"),
    "name length": (28, "H"),
    "extra length": (30, "H"),
    "comment length": (32, "H"),
    "disk": (34, "H"),
    "place": (42, "I"),
}
LOCAL = {
    "flags": (6, "H"),
    "method": (8, "H"),
    "checksum": (14, "I"),
    "packed": (18, "I"),
    "plain": (22, "I"),
    "name length": (26, "H"),
}
END = {"entries here": (8, "H"), "entries": (10, "H"), "size": (12, "I"), "place": (16, "I"), "comment": (20, "H")}


def change_zip(random: Random, content: bytes) -> bytes | None:
    """A wrong number in the directory of an archive, or members that are others and have the right checksums."""
    if not content.startswith(b"PK\x03\x04"):
        return None
    return random.choice((_change_zip_field, _change_zip_field, _change_zip_member, _flip_in_zip_member))(
        random, content
    )


def _change_zip_field(random: Random, content: bytes) -> bytes | None:
    signature, fields = random.choice(((b"PK\x01\x02", DIRECTORY), (b"PK\x03\x04", LOCAL), (b"PK\x05\x06", END)))
    places = [match.start() for match in re.finditer(re.escape(signature), content)]
    if not places:
        return None
    offset, letter = random.choice([*fields.values()])
    place = random.choice(places) + offset
    if place + 4 > len(content):
        return None
    (now,) = struct.unpack_from(f"<{letter}", content, place)
    most = 2 ** (8 * struct.calcsize(letter)) - 1
    value = random.choice(
        (0, 1, 8, 9, 12, now + 1, now - 1, now * 2, now * 1000, most, most // 2, random.randint(0, most))
    )
    return content[:place] + struct.pack(f"<{letter}", value & most) + content[place + struct.calcsize(letter) :]


def _members(content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [(entry, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, OSError, EOFError, zlib.error, RuntimeError, NotImplementedError, ValueError):
        return None


def _change_zip_member(random: Random, content: bytes) -> bytes | None:
    members = _members(content)
    if not members:
        return None
    place = random.randrange(len(members))
    entry, inside = members[place]
    method, name = entry.compress_type, entry.filename
    action = random.choice(("inside", "inside", "inside", "remove", "rename", "twice", "pack", "bomb"))
    if action == "inside" and inside:
        inside = (
            (change_npy(random, inside) if random.random() < 0.7 else None)
            or random.choice(BYTES)(random, inside)
            or b""
        )
    elif action == "rename":
        name = random.choice(("x.npy", "../x.npy", "/x", "", "y.npy", f"{name}x", "a\nb.npy", "constants.pkl"))
    elif action == "pack":
        method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    elif action == "bomb":
        inside, method = inside + bytes(2**26), zipfile.ZIP_DEFLATED
    chosen = [(entry.filename, entry.compress_type, inside) for entry, inside in members]
    chosen[place] = (name, method, inside)
    if action == "remove":
        del chosen[place]
    elif action == "twice":
        chosen.append((random.choice(chosen)[0], method, inside))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that are there twice
        for name, method, inside in chosen:
            new = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            new.compress_type = method
            with archive.open(new, "w") as stream:
                stream.write(inside)
    return made.getvalue()


def _flip_in_zip_member(random: Random, content: bytes) -> bytes | None:
    """A wrong byte in the bytes of a member, which its checksum tells."""
    places = [match.start() for match in re.finditer(b"PK\x03\x04", content)]
    place = random.choice(places)
    if place + 30 > len(content):
        return None
    (packed,) = struct.unpack_from("<I", content, place + 18)
    name, extra = struct.unpack_from("<HH", content, place + 26)
    begin = place + 30 + name + extra
    length = min(packed, len(content) - begin)
    if length <= 0:
        return None
    changed = bytearray(content)
    changed[begin + random.randrange(length)] ^= 1 << random.randrange(8)
    return bytes(changed)


# ---------------------------------------------------------------------- Parquet


def change_parquet(random: Random, content: bytes) -> bytes | None:
    """Another number or text in the footer, which is written anew; or another length of it."""
    if not content.startswith(b"PAR1") or not content.endswith(b"PAR1"):
        return None
    (length,) = struct.unpack("<I", content[-8:-4])
    if random.random() < 0.1:
        wrong = random.choice((0, 1, length - 1, length + 1, len(content), 2**31 - 1, 2**31, 2**32 - 1))
        return content[:-8] + struct.pack("<I", wrong) + b"PAR1"
    start = len(content) - 8 - length
    if start < 4:
        return None
    try:
        footer = decode(content, start)[0]
    except (ValueError, IndexError, RecursionError, OverflowError, MemoryError):
        return None
    for _ in range(random.choice((1, 1, 1, 3))):
        places = _thrift_places(footer)
        if not places:
            return None
        _change_thrift(random, *random.choice(places))
    try:
        written = encode(footer)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    return content[:start] + written + struct.pack("<I", len(written)) + b"PAR1"


def _thrift_places(fields: Any) -> list[tuple[Any, Any, int]]:
    """Every container in a struct of a footer, with every key of it and the type that stands there."""
    places: list[tuple[Any, Any, int]] = []
    for number, (kind, value) in fields.items():
        places += [(fields, number, kind), *_thrift_inside(value, kind)]
    return places


def _thrift_inside(value: Any, kind: int) -> list[tuple[Any, Any, int]]:
    if kind == STRUCT:
        return _thrift_places(value)
    if kind == LIST:
        item, values = value
        return [place for n, part in enumerate(values) for place in ((values, n, item), *_thrift_inside(part, item))]
    return []


def _change_thrift(random: Random, container: Any, key: Any, kind: int) -> None:
    value = container[key][1] if isinstance(container, dict) else container[key]
    if kind in (I16, I32, I64):
        most = {I16: 2**15, I32: 2**31, I64: 2**63}[kind] - 1
        new: Any = random.choice((0, 1, -1, 2, 3, 7, 9, 100, value + 1, value - 1, value * 2, most, -most - 1))
    elif kind == BINARY:
        new = random.choice(
            (b"", value + b"x", b"\xff\xfe", value[:-1], b"a" * 1000, b"element", bytes(reversed(value)))
        )
    elif kind == LIST and value[1]:
        new = random.choice(
            ((value[0], value[1][:-1]), (value[0], [*value[1], value[1][-1]]), (value[0], value[1][::-1]))
        )
    elif isinstance(container, dict):
        del container[key]
        return
    else:
        new = value
    container[key] = (kind, new) if isinstance(container, dict) else new


STRUCTURES: tuple[Mutation, ...] = (
    change_json,
    change_number_in_text,
    change_safetensors,
    change_npy,
    change_zip,
    change_parquet,
)


# ---------------------------------------------------------------------- the door


def damage(random: Random, tree: Tree, others: Sequence[bytes]) -> tuple[Tree, list[str]]:
    """A tree of which one file, or two, are damaged; and what was done, in words.

    Args:
        random: Where all chances come from.
        tree: What is whole.
        others: Files of all formats, to be taken for one another.
    """
    damaged, words = dict(tree), []
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        name = random.choice(sorted(name for name, content in tree.items() if content))
        content = damaged.get(name)
        if random.random() < 0.06:
            words.append(_replace_file(random, damaged, name, others))
        elif isinstance(content, bytes) and content:
            mutation, changed = _draw(random, content, others)
            if len(changed) < LARGE + len(content):
                damaged[name] = changed
                words.append(f"{mutation} in {name}")
    return damaged, words


def _draw(random: Random, content: bytes, others: Sequence[bytes]) -> tuple[str, bytes]:
    while True:
        if random.random() < 0.04:
            other = random.choice((*others, content))
            return "splice", content[: random.randint(0, len(content))] + other[random.randint(0, len(other)) :]
        mutation = random.choice(random.choice((BYTES, STRUCTURES)))
        changed = mutation(random, content)
        if changed is not None:
            return mutation.__name__, changed


def _replace_file(random: Random, tree: Tree, name: str, others: Sequence[bytes]) -> str:
    """Something else in the place of a file."""
    action = random.choice(("empty", "folder", "pipe", "loop", "nowhere", "device", "other", "other", "missing"))
    if action == "missing":
        tree.pop(name, None)
    elif action == "empty":
        tree[name] = b""
    elif action == "other":
        tree[name] = random.choice(others)
    elif action in ("folder", "pipe"):
        tree[name] = Other(action)
    else:
        target = {"loop": name.rpartition("/")[2], "nowhere": "not-there", "device": "/dev/zero"}[action]
        tree[name] = Other("link", target)
    return f"{action} in place of {name}"
