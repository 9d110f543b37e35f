"""How functions are declared: name, overloads, types, costs and implementation in one place."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tangram.cel.types import Type
from tangram.cel.values import Value, accepts, kubernetes_size, size

if TYPE_CHECKING:
    from tangram.cel.estimate import Estimate, Sized, Sizes

Cost = Callable[[Sequence[Value], Value], int]
"""What a call did cost, from its arguments and its result; an error among them is `FAILED`."""
Estimator = Callable[["Sizes", "Sized | None", "Sequence[Sized]"], "Estimate | None"]
"""What a call may cost, from what is known of the sizes of its receiver and arguments."""


class Failed:
    """Stands for an argument or result that is an error."""

    __slots__ = ()


FAILED = Failed()


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One signature. `call` takes the arguments, receiver first; with `budgeted`, a Budget before them.

    `cost` and `estimate` go before those of the function, and count only where the overload is known when
    compiling.
    """

    id: str
    parameters: tuple[Type, ...]
    result: Type
    call: Callable[..., Value] | None = None
    member: bool = False
    budgeted: bool = False
    cost: Cost | None = None
    estimate: Estimator | None = None

    def takes(self, values: Sequence[Value]) -> bool:
        """True for arguments of these run-time types."""
        return len(values) == len(self.parameters) and all(map(accepts, self.parameters, values))


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """All overloads of a name. With `dynamic`, one implementation serves them all and checks types itself.

    `walks`: its cost is that of a walk over all that the first argument holds, at any depth.
    """

    name: str
    overloads: tuple[Overload, ...]
    dynamic: Callable[..., Value] | None = None
    budgeted: bool = False
    cost: Cost | None = None
    estimate: Estimator | None = None
    walks: bool = False

    def joined(self, other: "Function") -> "Function":
        """This function with the overloads of another library added."""
        return Function(
            self.name,
            (*self.overloads, *other.overloads),
            self.dynamic or other.dynamic,
            self.budgeted,
            self.cost or other.cost,
            self.estimate or other.estimate,
            self.walks or other.walks,
        )


Library = Sequence[Function]


def merge(libraries: Iterable[Library]) -> dict[str, Function]:
    """All functions by name."""
    functions: dict[str, Function] = {}
    for library in libraries:
        for function in library:
            known = functions.get(function.name)
            functions[function.name] = function if known is None else known.joined(function)
    return functions


def function(name: str, *overloads: Overload, **settings: Any) -> Function:
    return Function(name, overloads, **settings)


def overload(id_: str, parameters: Sequence[Type], result: Type, call: Any = None, **rest: Any) -> Overload:
    """An overload called as `name(…)`."""
    return Overload(id_, tuple(parameters), result, call, **rest)


def method(id_: str, parameters: Sequence[Type], result: Type, call: Any = None, **rest: Any) -> Overload:
    """An overload called as `receiver.name(…)`."""
    return Overload(id_, tuple(parameters), result, call, member=True, **rest)


def per_character(*indices: int, factor: float = 0.1) -> Cost:
    """The cost of walking once over some of the arguments."""

    def cost(arguments: Sequence[Value], _: Value) -> int:
        return ceil_cost(sum(size(arguments[index]) for index in indices), factor)

    return cost


def kubernetes_per_character(factor: float = 0.1) -> Cost:
    """The cost of walking once over the first argument, as Kubernetes' libraries count."""
    return lambda arguments, _: ceil_cost(kubernetes_size(arguments[0]), factor)


def flat(_: Sequence[Value], __: Value) -> int:
    """The cost of a call that takes no longer for longer arguments."""
    return 1


def ceil_cost(amount: int, factor: float) -> int:
    """`amount * factor` in floating point, rounded up, as upstream multiplies."""
    return -int(-(float(amount) * factor) // 1)
