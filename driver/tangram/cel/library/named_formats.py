"""Named formats: `format.named("dns1123Label").value().validate(text)`, Kubernetes' library."""

import re
from collections.abc import Callable, Sequence
from datetime import date

from tangram.cel.declarations import Function, ceil_cost, flat, function, method, overload
from tangram.cel.estimate import Estimate, Sized, Sizes, flat_estimate
from tangram.cel.library.urls import is_request_uri
from tangram.cel.types import FORMAT, STRING, list_of, optional_of
from tangram.cel.values import ABSENT, Budget, NamedFormat, OptionalValue, Value, kubernetes_size

Messages = tuple[str, ...]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_BYTE = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _matching(pattern: re.Pattern[str], maximum: int, what: str) -> Callable[[str], Messages]:
    def validate(text: str) -> Messages:
        too_long = (f"longer than {maximum} bytes",) if _length(text) > maximum else ()
        return too_long if pattern.fullmatch(text) else (*too_long, f"not {what}")

    return validate


def _prefix(validate: Callable[[str], Messages]) -> Callable[[str], Messages]:
    """A name that more is put behind may end in a dash."""
    return lambda text: validate(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)


_label = _matching(_LABEL, 63, "a DNS label (RFC 1123)")
_label_1035 = _matching(_LABEL_1035, 63, "a DNS label (RFC 1035)")
_subdomain = _matching(_SUBDOMAIN, 253, "a DNS subdomain (RFC 1123)")
_label_value = _matching(re.compile(rf"({_NAME.pattern})?"), 63, "the value of a label")
_name = _matching(_NAME, 63, "a name")


def _qualified_name(text: str) -> Messages:
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return ("not a name with one prefix",)
    found: Messages = ()
    if slash:
        found = _subdomain(prefix) if prefix else ("the prefix is empty",)
    return (*found, *(("the name is empty",) if not name else ()), *_name(name))


def _of(test: Callable[[str], object], what: str) -> Callable[[str], Messages]:
    return lambda text: () if test(text) else (f"not {what}",)


def _is_date(text: str) -> bool:
    try:  # the year 0 is a leap year, as 2000 is, and none that Python knows
        return bool(_DATE.fullmatch(text)) and bool(date.fromisoformat(re.sub("^0000", "2000", text)))
    except ValueError:
        return False


def _is_datetime(text: str) -> bool:
    day, *rest = text.lower().split("t")
    match = _TIME.fullmatch(rest[0]) if rest else None
    if match is None or not _is_date(day):
        return False
    return match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


_FORMATS: dict[str, tuple[NamedFormat, Callable[[str], Messages]]] = {
    name: (NamedFormat(title, size), validate)
    for name, title, size, validate in (
        ("dns1123Label", "DNS1123Label", 30, _label),
        ("dns1123Subdomain", "DNS1123Subdomain", 60, _subdomain),
        ("dns1035Label", "DNS1035Label", 30, _label_1035),
        ("qualifiedName", "QualifiedName", 60, _qualified_name),
        ("dns1123LabelPrefix", "DNS1123LabelPrefix", 30, _prefix(_label)),
        ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", 60, _prefix(_subdomain)),
        ("dns1035LabelPrefix", "DNS1035LabelPrefix", 30, _prefix(_label_1035)),
        ("labelValue", "LabelValue", 40, _label_value),
        ("uri", "URI", 1103, _of(is_request_uri, "a URI")),
        ("uuid", "uuid", 70, _of(_UUID.fullmatch, "a UUID")),
        ("byte", "byte", 84, _of(_BYTE.fullmatch, "base64")),
        ("date", "date", 71, _of(_is_date, "a date")),
        ("datetime", "datetime", 71, _of(_is_datetime, "a date and time")),
    )
}
_VALIDATORS = {found.name: validate for found, validate in _FORMATS.values()}


def _named(name: str) -> OptionalValue:
    return OptionalValue(_FORMATS[name][0]) if name in _FORMATS else ABSENT


def _validate(budget: Budget, named: NamedFormat, text: str) -> OptionalValue:
    budget.labour(len(text))
    messages = _VALIDATORS[named.name](text)
    return OptionalValue(messages) if messages else ABSENT


def _validate_cost(arguments: Sequence[Value], _: Value) -> int:
    named = arguments[0]
    if type(named) is not NamedFormat:
        return 1
    return ceil_cost(1 + kubernetes_size(arguments[1]), 0.1) * ceil_cost(named.size, 0.25)


def _validate_estimate(sizes: Sizes, _: Sized | None, arguments: Sequence[Sized]) -> Estimate:
    return Estimate(sizes.of(arguments[0]).scaled(0.1).scaled(32.0))


NAMED_FORMATS: tuple[Function, ...] = (
    function(
        "format.named",
        overload("format-named", (STRING,), optional_of(FORMAT), _named),
        cost=flat,
        estimate=flat_estimate,
    ),
    *(
        function(f"format.{name}", overload(f"format.{name}", (), FORMAT, lambda found=found: found))
        for name, (found, _) in _FORMATS.items()
    ),
    function(
        "validate",
        method("format-validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate, budgeted=True),
        cost=_validate_cost,
        estimate=_validate_estimate,
    ),
)
