"""Count, from HLO text, what a program starts: kernels, collectives and waits for the host.

Also the bytes that its kernels read and write.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

# Instructions that start no kernel on a GPU or TPU
_FREE = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "call"),
    *("opt-barrier", "partition-id", "replica-id", "add-dependency", "while", "conditional"),
}
# Opcodes by which devices communicate; asynchronous ones end in -start and -done
_COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
}
# Opcodes that run the computations they name, one after another
_CONTROL = ("while", "conditional", "call")
# Opcodes that end what another instruction started
_ENDS = ("-done", "-update")
# Opcodes of a loop's condition that only compares a counter with a constant
_COUNTING = {"parameter", "get-tuple-element", "constant", "compare"}
_HEAD = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(
    r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_COUNT = re.compile(r"constant\((\d+)\)")
_NAME = re.compile(r'op_name="([^"]*)"')
_RESULT = re.compile(r"(?:ROOT )?%?([\w.\-]+)")
_PARAMETER = re.compile(r"parameter\((\d+)\)")
_OPERANDS = re.compile(r"\(([^)]*)\)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]+(\d*)\w*)\[([\d,]*)\]")  # type, its bits, shape
# Opcodes that read of their first operand only what they return
_READ_PARTS = ("dynamic-slice", "slice", "gather")
# Opcodes that only give an array another shape or type
_VIEWS = ("bitcast", "reshape", "convert", "copy", "transpose")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")  # the first one after the type, which has no such text


@dataclasses.dataclass(frozen=True)
class Launches:
    """Kernels and collectives started, and loops and branches that wait for the host."""

    kernels: int = 0
    waits: int = 0
    collectives: int = 0
    num_bytes: int = 0  # read and written by kernels

    def __add__(self, other: "Launches") -> "Launches":
        mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
        return Launches(*(a + b for a, b in zip(mine, others, strict=True)))

    def __mul__(self, times: int) -> "Launches":
        return Launches(*(times * number for number in dataclasses.astuple(self)))


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    opcode: str
    num_bytes: int  # of the result
    operands: tuple[str, ...]  # their names
    called: tuple[str, ...]  # computations: the body of a loop, the branches
    condition: str  # of a loop: the computation that ends it
    # The length of a loop, if the compiler states it; a constant's value; a parameter's index
    number: int | None
    is_less: bool  # whether it is a comparison by "less than"
    name: str  # op_name metadata: JAX's name stack, such as jit(f)/collect/while


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of known or unknown length, with what one iteration starts."""

    name: str
    trips: int | None
    each: Launches
    body: str  # computation


class Module:
    """Parse the computations of a compiled program.

    A loop of unknown length counts as one iteration and one wait.
    """

    def __init__(self, text: str) -> None:
        self._computations: dict[str, dict[str, Instruction]] = {}
        self._entry = ""
        inside: dict[str, Instruction] | None = None
        for line in text.splitlines():
            head = _HEAD.match(line)
            if head:
                inside = self._computations.setdefault(head[1], {})
                self._entry = head[1] if line.startswith("ENTRY") else self._entry
            elif line.startswith("}"):
                inside = None
            elif inside is not None and " = " in line:
                result, _, rest = line.strip().partition(" = ")
                name = _RESULT.match(result)
                inside[name[1] if name else result] = _instruction(rest)
        self._cost = lru_cache(None)(self._count)

    @property
    def launches(self) -> Launches:
        """Return what one call of the program starts."""
        return self._cost(self._entry)

    def loops(self) -> Iterator[Loop]:
        """Yield all loops that the program enters."""
        seen, left = set(), [self._entry]
        while left:
            name = left.pop()
            if name in seen:
                continue
            seen.add(name)
            for each in self._instructions(name):
                if each.opcode == "while":
                    body = each.called[0]
                    yield Loop(each.name, self._trips(each), self._cost(body), body)
                if each.opcode in _CONTROL:
                    left += each.called

    def update(self) -> Loop:
        """Return the loop over updates of a training program: the one with the most kernels."""
        return max(self.loops(), key=lambda loop: loop.each.kernels)

    def _instructions(self, computation: str) -> Iterable[Instruction]:
        return self._computations.get(computation, {}).values()

    def _count(self, computation: str) -> Launches:
        total = Launches()
        for each in self._instructions(computation):
            inner = [self._cost(name) for name in each.called]
            if each.opcode == "while":
                trips = self._trips(each)
                total += inner[0] + Launches(waits=1) if trips is None else inner[0] * trips
            elif each.opcode == "conditional":
                total += max(inner, key=lambda cost: cost.kernels) + Launches(waits=1)
            elif each.opcode == "call":
                total += inner[0]
            elif each.opcode not in _FREE and not each.opcode.endswith(_ENDS):
                moved = self._moved(each, self._computations[computation])
                total += Launches(kernels=1, num_bytes=moved)
                total += Launches(collectives=int(_base(each.opcode) in _COLLECTIVES))
                for cost in inner:  # a fusion or an asynchronous call may contain collectives
                    total += Launches(collectives=cost.collectives)
        return total

    def _moved(self, each: Instruction, scope: Mapping[str, Instruction]) -> int:
        """Return the bytes that a kernel reads and writes; `scope` is the computation around it.

        As in XLA's cost analysis, a slice is read alone, and an update in place is read and written
        alone. Whether an array is still in a cache is not considered.
        """
        sizes = [scope[name].num_bytes if name in scope else 0 for name in each.operands]
        if each.opcode in _READ_PARTS:
            return 2 * each.num_bytes
        if each.opcode == "dynamic-update-slice":
            return 2 * sizes[1]
        if each.opcode != "fusion" or each.called[0] not in self._computations:
            return sum(sizes) + each.num_bytes
        inner = self._computations[each.called[0]]
        parameters = {x.number: name for name, x in inner.items() if x.opcode == "parameter"}
        read = 0
        for index, size in enumerate(sizes):
            uses = list(_uses(parameters[index], inner)) if index in parameters else []
            if uses and all(use.opcode in _READ_PARTS and is_first for use, is_first in uses):
                size = min(size, sum(use.num_bytes for use, _ in uses))
            elif uses and all(
                use.opcode == "dynamic-update-slice" and is_first for use, is_first in uses
            ):
                size = 0
            read += size
        *_, root = inner.values()  # the last line
        results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return read + sum(_written(result, inner) for result in results)

    def _trips(self, loop: Instruction) -> int | None:
        """Return the length of a loop; None if it is unknown.

        Compilers that do not say it leave the condition `i < constant`, where i starts at 0.
        """
        ends = list(self._instructions(loop.condition))
        counts = [each.number for each in ends if each.opcode == "constant"]
        is_count = len(counts) == 1 and {each.opcode for each in ends} == _COUNTING
        if loop.number is None and is_count and any(each.is_less for each in ends):
            return counts[0]
        return loop.number


def _uses(name: str, inner: Mapping[str, Instruction]) -> Iterator[tuple[Instruction, bool]]:
    """Yield what uses an array or a view of it, and whether only as the first operand."""
    for other, each in inner.items():
        if name in each.operands:
            views = list(_uses(other, inner)) if each.opcode in _VIEWS else []
            yield from views or [(each, each.operands.index(name) == 0)]


def _written(result: Instruction, inner: Mapping[str, Instruction]) -> int:
    """Return the bytes that a fusion writes of one result."""
    while result.opcode in ("bitcast", "reshape"):
        result = inner[result.operands[0]]
    if result.opcode == "dynamic-update-slice":
        return inner[result.operands[1]].num_bytes
    return result.num_bytes


def _instruction(text: str) -> Instruction:
    """Read what follows the equals sign: a type, the opcode with operands, and attributes."""
    match = _OPCODE.search(text)
    opcode, rest = (match[1], text[match.start() :]) if match else ("", "")
    called: list[str] = []
    for one, several in _CALLED.findall(rest):
        called += [one] if one else [name.strip().lstrip("%") for name in several.split(",")]
    number = {"constant": _COUNT, "parameter": _PARAMETER}.get(opcode, _TRIPS).search(rest)
    operands = _OPERANDS.search(rest)
    name, condition = _NAME.search(rest), _CONDITION.search(rest)
    return Instruction(
        opcode=opcode,
        num_bytes=sum(_size(*array) for array in _ARRAY.findall(text[: len(text) - len(rest)])),
        operands=tuple(_OPERAND.findall(operands[1])) if operands else (),
        called=tuple(called),
        condition=condition[1] if condition else "",
        number=None if number is None else int(number[1]),
        is_less="direction=LT" in rest,
        name=name[1] if name else "",
    )


def _base(opcode: str) -> str:
    """Return the opcode of an asynchronous one that starts; others are unchanged."""
    return opcode.removesuffix("-start")


def _size(kind: str, bits: str, shape: str) -> int:
    """Return the bytes of an array; kinds without a number of bits are `pred` and `token`."""
    elements = math.prod(int(length) for length in shape.split(",") if length)
    return elements * (max(int(bits) // 8, 1) if bits else int(kind == "pred"))
