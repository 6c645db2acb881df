"""A walk through a traced graph that keeps, for every value, what its axes are made of.

Each operator has a rule (the folder `operators`) that says what the operator demands of the axes it touches, and what
the axes of its result are. An operator without a rule fixes all it touches: a map may be smaller than it could be, but
it is never wrong.
"""

from __future__ import annotations

import inspect
import operator as python_operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from interbasin.wiring.axes.axes import Axes
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Atom, Reason, Role, Same, Still, Term
from interbasin.wiring.trace.aliases import arguments_of, is_plain_write, module_path, operator_name
from interbasin.wiring.trace.tracing import MARK

INPUT = Reason("input", "it meets the network's input")
HIDDEN = Reason("unknown", "it comes from inside a module that was walked around")
KEPT = Reason("constant", "the network writes into it during a call")
# In place of numbers that a network takes out of tensors: one that is equal to none, and a whole one.
SOME_NUMBER, SOME_INDEX = float("nan"), object()
# What a rule fails with where ranks or arguments are others than it was written for.
UNFORESEEN = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
# Operators that lay a tensor out anew or take a part of it, and read no number: what they leave over is unread.
VIEW_OPERATORS = frozenset({
    "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk",
    "unsafe_split", "split_copy", "unbind", "view", "_unsafe_view", "reshape", "permute", "transpose", "t",
    "numpy_T", "mT", "expand", "unsqueeze", "squeeze", "flatten", "unflatten", "movedim", "moveaxis", "alias",
    "detach", "contiguous", "clone", "to", "_to_copy",
})  # fmt: skip
# Operators that hand a tensor on as it is.
PASS_THROUGH = frozenset(
    {"to", "_to_copy", "alias", "detach", "contiguous", "clone", "type_as", "float", "double", "dropout"}
)


@dataclass(eq=False)
class Value:
    """A tensor of the graph: the terms of its axes, and where it comes from.

    Attributes:
        dims: One term per axis.
        learned: It depends on parameters alone, as gains and normalised weights do.
        pending: Something that was done to it and is not yet known to matter; see `Pending`.
    """

    dims: list[Term]
    learned: bool = False
    pending: Pending | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(term.size for term in self.dims)


@dataclass(frozen=True)
class Pending:
    """A step whose demands depend on what comes next.

    ``square``: the square of ``base``. If it is summed next, lengths are read; otherwise entries are.
    ``piece``: half of an axis, possibly with its sign changed. If the halves are put together again with a sign (rotary
    positions), pairs of channels are turned; otherwise the axis is cut.
    """

    kind: str
    base: Value
    axis: int = 0
    index: int = 0
    strided: bool = False
    sign: int = 1


Result: TypeAlias = "Value | Sequence[Value | None] | None"
Rule: TypeAlias = Callable[..., Result]


@dataclass(frozen=True)
class Entry:
    apply: Rule
    lazy: bool
    signature: inspect.Signature

    def takes(self, run: Interpreter, arguments: dict[str, Any]) -> bool:
        """Whether the rule was written for such arguments, and looks at every tensor among them."""
        try:
            bound = self.signature.bind(run, **arguments)
        except TypeError:
            return False
        parameters = self.signature.parameters.values()
        rest = [each.name for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD]
        passed_over = [list(bound.arguments.get(name, {}).values()) for name in rest]
        return not _values(passed_over) and all(part is not SOME_INDEX for part in _flat(list(arguments.values())))


RULES: dict[str, Entry] = {}


def rule(*names: str, lazy: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for the aten operators ``names`` (all overloads).

    The rule is called with the `Interpreter` and the operator's arguments by the names of its schema: tensors as
    `Value`, everything else as it stands. It returns the `Value` of the result, or one per result. What a rule takes
    without a name (``**_``) may be numbers and flags; with a tensor there, or an argument without a place, the operator
    counts as unknown.

    Args:
        names: Without ``aten.``, the overload, or the underscore of an in-place form.
        lazy: The rule looks at pending values itself; all others get them settled.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = Entry(function, lazy, inspect.signature(function))
        return function

    return register


@dataclass
class Interpreter:
    """One walk. Rules use `axes` to learn, and `why` to say in which operator and module they learned it."""

    axes: Axes
    # Modules that are walked around, with the axis they work along, and what went into them.
    around: Mapping[str, int] = field(default_factory=dict)
    entered: dict[str, Value] = field(default_factory=dict)
    inside: str | None = None
    # Nodes that write into what outlives the call: the network's own tensors, and its inputs.
    writes: frozenset[fx.Node] = frozenset()
    unknown: dict[str, int] = field(default_factory=dict)
    # What some operator looked at.
    read: set[Atom] = field(default_factory=set)
    # How each atom stood in the first value that was not a parameter: that is the side its map acts on.
    seen: dict[Atom, Role] = field(default_factory=dict)
    # What went into modules and came out of them, by place.
    marks: list[tuple[str, Value]] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    operator: str = ""
    module: str = ""

    # ------------------------------------------------------------------ what rules use

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result."""
        return self.shapes[0]

    def why(self, what: str, kind: str = "operator") -> Reason:
        return Reason(kind, f"{what} ({self.operator}{f' in {self.module}' if self.module else ''})")

    def result(self, dims: Sequence[Term], *sources: Value) -> Value:
        """The value of a result, learned if all its sources are."""
        value = Value(self.axes.settle(dims), learned=bool(sources) and all(source.learned for source in sources))
        if not value.learned:
            for term in value.dims:
                for leaf in self.axes.leaves(term):
                    self.seen.setdefault(leaf.space, leaf.role)
        return value

    def moves(self, value: Value) -> bool:
        return any(self.axes.moves(term) for term in value.dims)

    def restrict(self, terms: Iterable[Term], group: Group, what: str) -> None:
        """Only maps of ``group`` may act on ``terms`` from now on, because of ``what`` the operator does."""
        for term in terms:
            self.axes.restrict(term, group, self.why(what))

    def fix(self, value: Value, why: Reason) -> None:
        for term in value.dims:
            self.axes.restrict(term, Group.FIXED, why)

    def write_back(self, before: Value, after: Value) -> None:
        """A tensor that outlives the call is written into: the next call reads there what this one wrote.

        That is right if it moves as what was there before; otherwise neither can move.
        """
        terms = [[self.axes.resolve(term) for term in self.settle(value).dims] for value in (before, after)]
        if terms[0] != terms[1]:
            self.fix(before, KEPT)
            self.fix(after, KEPT)

    def settle(self, value: Value) -> Value:
        """The value with nothing pending."""
        if value.pending is None:
            return value
        pending, value.pending = value.pending, None
        if pending.kind == "square":
            self.restrict(value.dims, Group.PERMUTATION, "its entries are squared")
            return value
        value.dims = self.half(self.settle(pending.base), pending)
        return value

    def half(self, base: Value, pending: Pending) -> list[Term]:
        size = base.shape[pending.axis] // 2
        if not pending.strided:
            return self.take(base, pending.axis, pending.index * size, size)
        factors = self.axes.split(base.dims[pending.axis], [size, 2])
        if factors is None:
            return self.give_up(base, (*base.shape[: pending.axis], size, *base.shape[pending.axis + 1 :]))
        spread = [*base.dims[: pending.axis], *factors, *base.dims[pending.axis + 1 :]]
        kept = self.take(Value(spread), pending.axis + 1, pending.index, 1)
        return [term for position, term in enumerate(kept) if position != pending.axis + 1]

    def take(self, value: Value, axis: int, start: int, length: int) -> list[Term]:
        """The axes of a slice."""
        kept = self.axes.take(value.dims, axis, start, length)
        if kept is None:
            return self.give_up(value, (*value.shape[:axis], length, *value.shape[axis + 1 :]))
        return kept

    def give_up(self, value: Value, shape: Sequence[int]) -> list[Term]:
        """Still axes in place of what could not be followed; whatever the operator touches is fixed."""
        why = self.why("its axes are cut in a way that is not followed")
        for touched in (value, *self.operands):
            self.fix(touched, why)
        return [still(size, why) for size in shape]

    # ------------------------------------------------------------------ the walk

    def walk(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
        """The values that a graph returns when its placeholders hold ``inputs``."""
        held: dict[fx.Node, Any] = {}
        waiting = iter(inputs)

        def value_of(argument: Any) -> Any:
            return fx.map_arg(argument, known)

        def known(node: fx.Node) -> Any:
            if held[node] is None and isinstance(node.meta.get("val"), torch.Tensor):
                return constant(node.meta["val"].shape, HIDDEN)
            return held[node]

        for node in graph.graph.nodes:
            if node.op == "placeholder":
                held[node] = next(waiting)
            elif node.op == "get_attr":
                held[node] = self._attribute(graph, str(node.target))
            elif node.op == "output":
                return list(value_of(node.args[0]))
            else:
                held[node] = self._call(graph, node, held, value_of)
        return []

    def _attribute(self, graph: fx.GraphModule, name: str) -> Any:
        attribute: Any = graph
        for part in name.split("."):
            attribute = getattr(attribute, part)
        return constant(attribute.shape) if isinstance(attribute, torch.Tensor) else attribute

    def _call(self, graph: fx.GraphModule, node: fx.Node, held: dict[fx.Node, Any], value_of: Any) -> Any:
        if node.target is python_operator.getitem:
            container, position = node.args
            results = held[container]  # type: ignore[index]
            return None if results is None else results[position]
        name = str(node.target)
        path = module_path(node)
        self.module = self.module if path is None else path
        if node.target is MARK:
            self._mark(node, held)
            return None
        if self.inside is not None:
            return self._passed_through(node, held)
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._higher_order(node, name, value_of)
        if name.startswith("aten._assert"):
            return None
        if _is_number(node.meta.get("val")):
            return self._number(node, name, value_of)
        arguments = {name: value_of(argument) for name, argument in arguments_of(node).items()}
        packet = name.split(".")[1] if name.startswith("aten.") else name
        in_place = is_plain_write(node)
        self.operator, self.shapes = name.removesuffix(".default"), _shapes(node.meta.get("val"))
        if packet not in VIEW_OPERATORS:
            self._read(_values(list(arguments.values())))
        entry = RULES.get(packet) or (RULES.get(packet.removesuffix("_")) if in_place else None)
        result = self._checked(node, name, self._apply(entry, name, arguments))
        if in_place:
            before, held[node.args[0]] = held[node.args[0]], result  # type: ignore[index]
            if node in self.writes and isinstance(before, Value) and isinstance(result, Value):
                self.write_back(before, result)
        return result

    def _read(self, values: Sequence[Value]) -> None:
        for value in values:
            for term in value.dims:
                self.read.update(leaf.space for leaf in self.axes.leaves(term))

    def _checked(self, node: fx.Node, name: str, result: Any) -> Any:
        """The result with a value for every tensor that is read; what is cast is not what it was."""
        made = node.meta.get("val")
        if not isinstance(made, list | tuple):
            return self._cast(node, result, made)
        results = _sequence(result)
        if _places_read(node) > len(results):
            # The rule covers only the first results.
            results.extend(_sequence(self.not_known(name, self.operands))[len(results) :])
        return [self._cast(node, value, tensor) for value, tensor in zip(results, made, strict=False)]

    def _cast(self, node: fx.Node, value: Any, tensor: Any) -> Any:
        """Entries that are rounded stay where they are, but are others; whole numbers can only change places."""
        if not isinstance(value, Value) or not isinstance(tensor, torch.Tensor):
            return value
        if value.pending is None and value.shape != tuple(tensor.shape):
            # The rule was not written for this form of the operator.
            self.not_known(f"{self.operator} in this form", self.operands)
            self.fix(value, self.why("its axes are not those of the result"))
            return constant(tensor.shape, self.why("a form of the operator that has no rule", "unknown"))
        inputs = (source.meta.get("val") for source in node.all_input_nodes)
        before = {tensor.dtype for tensor in inputs if isinstance(tensor, torch.Tensor)}
        if before != {tensor.dtype} and any(value is operand for operand in self.operands):
            value = Value(list(value.dims), value.learned, value.pending)
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or tensor.dtype.itemsize == 1:
            self.restrict(self.settle(value).dims, Group.PERMUTATION, "it is rounded to few digits")
        return value

    def _number(self, node: fx.Node, name: str, value_of: Any) -> Any:
        """A number that is taken out of a tensor is the same whatever the maps, so all that it is taken of is fixed."""
        number = node.meta["val"]
        if not isinstance(number, bool | int | float):
            for value in _values([value_of(argument) for argument in arguments_of(node).values()]):
                self.fix(self.settle(value), self.why(f"a number is taken out of it by {name}"))
        return _stand_in(number)

    def _passed_through(self, node: fx.Node, held: dict[fx.Node, Any]) -> Any:
        """Inside a module that is walked around only what hands a tensor on unchanged counts.

        A cast that changes nothing gives the tensor itself, so what comes after the module may go on with it.
        """
        source = node.args[0] if node.args else None
        return held.get(source) if operator_name(node) in PASS_THROUGH and isinstance(source, fx.Node) else None

    def _mark(self, node: fx.Node, held: dict[fx.Node, Any]) -> None:
        marked, place = node.args
        assert isinstance(marked, fx.Node)
        name, side, _ = str(place).rsplit(":", 2)
        if name in self.around:
            if side == "input" and self.inside is None:
                self.inside, self.entered[name] = name, self.settle(held[marked])
            elif side == "output" and self.inside == name:
                self.inside = None
                # The module was walked around: all axes pass through it but its own, which begins anew.
                entered, axis = self.entered[name], self.around[name]
                if entered.shape == _shapes(marked.meta.get("val"))[0] and len(entered.shape) > max(axis, 0):
                    dims = list(entered.dims)
                    (dims[axis],) = self.axes.parameter((entered.shape[axis],))
                    held[marked] = self.result(dims)
                else:
                    held[marked] = self.not_known(f"{name}, which changes the shape", [entered])
        if held[marked] is not None:
            self.marks.append((str(place), held[marked]))

    def _apply(self, entry: Entry | None, name: str, arguments: dict[str, Any]) -> Any:
        self.operands = _values(list(arguments.values()))
        if entry is None or not entry.takes(self, arguments):
            return self.not_known(name, self.operands)
        if not entry.lazy:
            for value in self.operands:
                self.settle(value)
        self.axes.context = self.why("axes of different structure meet")
        try:
            return entry.apply(self, **arguments)
        except UNFORESEEN:
            # The rule was not written for this form of the operator; what it has asked so far does no harm.
            return self.not_known(f"{name} in this form", self.operands)

    def not_known(self, name: str, values: Sequence[Value]) -> Any:
        """The result of an operator without a rule: all that it touches is fixed."""
        moving = [value for value in map(self.settle, values) if self.moves(value)]
        if moving:
            self.unknown[name] = self.unknown.get(name, 0) + 1
        where = f" ({self.module})" if self.module else ""
        why = Reason("unknown", f"the operator {name} has no rule{where}") if moving else _plain_reason(values)
        for value in moving:
            self.fix(value, why)
        results = [constant(shape, why) for shape in self.shapes]
        return results[0] if len(results) == 1 else results

    def _higher_order(self, node: fx.Node, name: str, value_of: Any) -> Any:
        arguments = [value_of(argument) for argument in node.args]
        for position, argument in enumerate(arguments):
            if isinstance(argument, fx.GraphModule) and "wrap" in name:
                # A region with autograd or autocast switched: the switches change no axis.
                return self.walk(argument, arguments[position + 1 :])
        made = node.meta.get("val")
        if _is_number(made):
            return _stand_in(made)  # arithmetic with numbers that were taken out of tensors
        values = _values([*arguments, *map(value_of, node.kwargs.values())])
        if not values:
            return None
        self.operator, self.shapes = name, _shapes(made)
        result = self.not_known(name, values)
        return [result] if isinstance(result, Value) and isinstance(made, list | tuple) else result


def constant(shape: Sequence[int], why: Reason = INPUT) -> Value:
    """A value that never moves."""
    return Value([still(size, why) for size in shape])


def still(size: int, why: Reason) -> Term:
    """An axis that never moves."""
    return Still(size, why) if size > 1 else Same(size)


def _plain_reason(values: Sequence[Value]) -> Reason:
    reasons = [term.why for value in values for term in value.dims if isinstance(term, Still)]
    return next((reason for reason in reasons if reason.kind in ("unknown", "operator")), INPUT)


def _values(argument: Any) -> list[Value]:
    return [part for part in _flat(argument) if isinstance(part, Value)]


def _shapes(made: Any) -> list[tuple[int, ...]]:
    if isinstance(made, torch.Tensor):
        return [tuple(int(size) for size in made.shape)]
    if isinstance(made, list | tuple):
        return [shape for part in made for shape in (_shapes(part) or [()])]
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def _stand_in(number: Any) -> Any:
    """A number, or what stands for one that is not known before the call."""
    if isinstance(number, bool | int | float):
        return number
    return SOME_NUMBER if isinstance(number, torch.SymFloat) else SOME_INDEX


def _places_read(node: fx.Node) -> int:
    """How many of its results an operator has to have a value for."""
    places = [user.args[1] for user in node.users if user.target is python_operator.getitem and user.users]
    return max((place + 1 for place in places if isinstance(place, int)), default=0)


def _sequence(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def _flat(argument: Any) -> list[Any]:
    return [leaf for part in argument for leaf in _flat(part)] if isinstance(argument, list | tuple) else [argument]
