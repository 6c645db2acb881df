"""Two networks matched by names: equal ones, and those that a mapping given by hand sends to each other."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from interbasin.correspondence.outline import Outline
from interbasin.correspondence.pairs import Part, TensorPair, Unmatched, expand, split, tensor_of
from interbasin.correspondence.roles import Match
from interbasin.errors import UnknownNameError, WiringError
from interbasin.wiring import Role, Wiring
from interbasin.wiring.axes.spaces import Axis

Names = Mapping[str, str | Sequence[str] | None]
_NUMBER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class _Rule:
    """One line of a mapping. A pattern has numbers in braces, or ends with a dot and stands for all names below."""

    key: str
    targets: tuple[str, ...]

    @classmethod
    def of(cls, key: str, value: str | Iterable[str] | None) -> _Rule:
        """The rule that sends a name to another, to several, or to none."""
        listed = [] if value is None else value if isinstance(value, Iterable) else [value]
        targets = (listed,) if isinstance(listed, str) else tuple(listed)
        if not isinstance(key, str) or not all(isinstance(target, str) for target in targets):
            raise WiringError(
                f"names sends {key!r} to {value!r}; give a name of the source, and for it a name of the target, a list "
                "of such, or None."
            )
        return cls(key, targets)

    def __post_init__(self) -> None:
        for target in self.targets:
            if self.key.endswith(".") != target.endswith("."):
                raise WiringError(f"names sends {self.key!r} to {target!r}; a prefix ends with a dot on both sides.")
            unknown = set(_NUMBER.findall(target)) - set(_NUMBER.findall(self.key))
            if unknown:
                raise WiringError(
                    f"names sends {self.key!r} to {target!r}, but {{{min(unknown)}}} stands on the right side alone."
                )

    @property
    def is_pattern(self) -> bool:
        return self.key.endswith(".") or _NUMBER.search(self.key) is not None

    @property
    def length(self) -> int:
        """How many characters of a name it fixes: the more, the more it says."""
        return len(_NUMBER.sub("", self.key))

    def rewrite(self, name: str) -> list[str] | None:
        """The names that it sends ``name`` to, or None if it says nothing of it."""
        if name.endswith("]") and not self.key.endswith("]"):
            return None  # a segment is named as one: in the target it may lie elsewhere
        pattern, numbers = "", set()
        for place, piece in enumerate(_NUMBER.split(self.key)):
            number = f"(?P={piece})" if piece in numbers else rf"(?P<{piece}>\d+)"
            pattern += number if place % 2 else re.escape(piece)
            numbers |= {piece} if place % 2 else set()
        match = re.match(pattern if self.key.endswith(".") else pattern + r"\Z", name)
        if match is None:
            return None
        values, rest = match.groupdict(), name[match.end() :]
        return [_NUMBER.sub(lambda place: values[place[1]], target) + rest for target in self.targets]


class NameMatch(Match):
    """Two outlines matched by names."""

    def __init__(self, source: Outline, target: Outline, names: Names) -> None:
        super().__init__(source, target)
        if not isinstance(names, Mapping):
            raise WiringError(
                f"names is a mapping from names of the source to those of the target, found a {type(names).__name__}."
            )
        self._rules = [_Rule.of(key, value) for key, value in names.items()]
        self._check_rules()
        for outline, unmatched in zip(self.outlines, self.unmatched, strict=True):
            for name in outline.wiring.tensors:
                unmatched.append(Unmatched("tensor", name, "no tensor of the other network has its name"))
            for name in outline.wiring.spaces:
                unmatched.append(Unmatched("space", name, "no tensor that lies in it has a partner"))
        for name in (*source.wiring.tensors, *source.wiring.tied):
            for part in self._parts(name):
                self._match_tensor(part)
        self._match_spaces()

    def _check_rules(self) -> None:
        ours, theirs = ({*side.wiring.spaces, *side.wiring.tensors, *side.wiring.tied} for side in self.outlines)
        segments = {str(term.part) for slot in self.outlines[0].slots for term in slot.terms}
        for rule in self._rules:
            name = Part.parse(rule.key).name
            if name not in ours and all(rule.rewrite(known) is None for known in ours | segments):
                raise UnknownNameError.of("space or tensor of the source", rule.key, ours)
            for target in rule.targets:
                if not rule.is_pattern and Part.parse(target).name not in theirs:
                    raise UnknownNameError.of("space or tensor of the target", target, theirs)

    def _targets(self, name: str) -> tuple[list[str], bool]:
        """The names that ``name`` is sent to, and whether by hand."""
        fitting = [(rule.length, targets) for rule in self._rules if (targets := rule.rewrite(name)) is not None]
        longest = [targets for length, targets in fitting if length == max(fitting)[0]]
        for targets in longest:
            if targets != longest[0]:
                raise WiringError(f"names sends {name!r} both to {longest[0]} and to {targets}; keep one of the two.")
        return (longest[0], True) if longest else ([name], False)

    # ------------------------------------------------------------------ tensors

    def _parts(self, name: str) -> list[Part]:
        """The tensor, or the segments of it that are named by hand."""
        segments = {Part(name, segment) for segment, _ in split(tensor_of(self.outlines[0].wiring, name)) if segment}
        segments |= {part for rule in self._rules if (part := Part.parse(rule.key)).name == name and part.segment}
        by_hand = [part for part in segments if self._targets(str(part))[1]]
        return sorted(by_hand, key=str) or [Part(name)]

    def _match_tensor(self, part: Part) -> None:
        targets, by_hand = self._targets(str(part))
        reasons = [self._pair(part, Part.parse(text), by_hand) for text in targets] or ["names leaves it out"]
        self.unmatched[0].extend(Unmatched.of("tensor", part, reason) for reason in filter(None, reasons))

    def _pair(self, part: Part, other: Part, by_hand: bool) -> str | None:
        """Add a pair, or say why not."""
        target = self.outlines[1].wiring
        if not by_hand and other.name in target.tied:
            return f"the other network ties it to {target.tied[other.name]!r}"
        if target.tied.get(other.name, other.name) not in target.tensors:
            return "names sends it to a tensor that the other network does not have" if by_hand else None
        ours, theirs = (
            [entry.role for entry in outline.entries(tensor_of(outline.wiring, name).axes)]
            for outline, name in zip(self.outlines, (part.name, other.name), strict=True)
        )
        if len(ours) != len(theirs):
            return f"it has {len(ours)} axes, and {other.name!r} of the other network has {len(theirs)}"
        orders = itertools.permutations(range(len(ours)))
        same_roles = (order for order in orders if [ours[axis] for axis in order] == theirs)
        self.terms[part, other] = next(same_roles, None)
        return None

    # ------------------------------------------------------------------ spaces

    def _match_spaces(self) -> None:
        """Spaces by hand; else those that axes of paired tensors lie in, where they write before where they read."""
        written, read = self._votes()
        known = self.outlines[1].wiring.spaces
        for name in self.outlines[0].wiring.spaces:
            targets, _ = self._targets(name)
            exact = any(rule.key == name for rule in self._rules)
            votes = written.get(name) or read.get(name) or Counter()
            if votes and not exact:
                targets = [other for other, count in votes.items() if 2 * count >= max(votes.values())]
            self.spaces.update(dict.fromkeys((name, other) for other in targets if other in known))
            if not targets:
                self.unmatched[0].append(Unmatched("space", name, "names leaves it out"))

    def _votes(self) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
        """How many axes that write, and how many that read, speak for a pair of spaces."""
        votes: tuple[dict[str, Counter[str]], dict[str, Counter[str]]] = ({}, {})
        source, target = (outline.wiring for outline in self.outlines)
        tensors = (TensorPair.of(*parts, order=order) for parts, order in self.terms.items())
        for pair in expand(tensors, source, target):
            ours, theirs = _axes(source, pair.parts[0]), _axes(target, pair.parts[1])
            entries, partners = list(self.outlines[0].entries(ours)), list(self.outlines[1].entries(theirs))
            for axis, origin in enumerate(pair.order or range(len(theirs))):
                assert origin is not None
                entry, partner = entries[origin], partners[axis]
                spaces = self.pair_factors(ours[origin], theirs[axis])
                if entry.space is not None and partner.space is not None:
                    spaces.append((entry.space, partner.space))
                for name, other in spaces:
                    votes[entry.role is Role.READ].setdefault(name, Counter())[other] += 1
        return votes


def _axes(wiring: Wiring, part: Part) -> tuple[Axis, ...]:
    tensor = tensor_of(wiring, part.name)
    return next((axes for segment, axes in split(tensor) if segment == part.segment), tensor.axes)
