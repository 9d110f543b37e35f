"""GPUClaimParameters v1alpha1: the opaque parameters of a device class or claim, decoded strictly.

Reference for users: docs/parameters.md.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tangram import DRIVER_NAME
from tangram.base.errors import InvalidObjectError

API_VERSION = f"{DRIVER_NAME}/v1alpha1"
KIND = "GPUClaimParameters"
MAXIMUM_LENGTH = 10 * 1024
"""Of the JSON text, in bytes (`OpaqueParametersMaxLength` of resource/v1)."""

_MIG_PROFILE = r"(?ia)^([1-9]c\.)?[1-9]g\.[0-9]{1,4}gb([+-][a-z]+(\.[a-z]+)?)?\Z"
_QUANTITY = r"^[0-9]{1,15}(\.[0-9]{1,9})?([KMGT]i|[kMGT])?\Z"
_SUBREQUEST = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z"
_Gigabytes = Annotated[int, Meta(ge=1, le=100_000)]
_Alternatives = Annotated[
    dict[Annotated[str, Meta(pattern=_SUBREQUEST)], Annotated[float, Meta(gt=0, le=1_000_000)]],
    Meta(max_length=8),
]


class _Parameters(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Every field may be absent (UNSET: whoever is merged before decides) or null (None: the default)."""


class MpsParameters(_Parameters, frozen=True, kw_only=True):
    """Shares of a GPU by MPS: part of the multiprocessors in percent, device memory as a quantity."""

    thread_percent: Annotated[int, Meta(ge=1, le=100)] | UnsetType | None = UNSET
    pinned_memory: Annotated[str, Meta(pattern=_QUANTITY)] | UnsetType | None = UNSET


class GPUClaimParameters(_Parameters, frozen=True, kw_only=True):
    """What a claim asks of each of its GPUs, and of them together.

    `memory_gb` in 10⁹ bytes per GPU; `gpu_type` a model family, or family and size; `nv_link_peers` the size
    of fully linked sets; `alternatives` maps a subrequest to what it is worth.
    """

    memory_gb: _Gigabytes | UnsetType | None = msgspec.field(default=UNSET, name="memoryGB")
    gpu_type: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType | None = UNSET
    nv_link_peers: Annotated[int, Meta(ge=1, le=72)] | UnsetType | None = UNSET
    mig_profile: Annotated[str, Meta(pattern=_MIG_PROFILE)] | UnsetType | None = UNSET
    sh_policy: Literal["exclusive", "mps", "timeSlice"] | UnsetType | None = UNSET
    mps: MpsParameters | UnsetType | None = UNSET
    replicas: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType | None = UNSET
    alternatives: _Alternatives | UnsetType | None = UNSET
    latency_sensitive: bool | UnsetType | None = UNSET
    long_kernels: bool | UnsetType | None = UNSET


_RULES = {
    "memoryGB": "must be an integer from 1 to 100000 (GB per GPU)",
    "gpuType": "must be a text of 1 to 64 characters, such as H100 or H100-80GB",
    "nvLinkPeers": "must be an integer from 1 to 72 (GPUs of one linked set)",
    "migProfile": "must be a MIG profile, such as 3g.40gb",
    "shPolicy": "must be exclusive, mps or timeSlice",
    "mps": "must be an object with threadPercent and pinnedMemory",
    "mps.threadPercent": "must be an integer from 1 to 100",
    "mps.pinnedMemory": "must be a quantity as text, such as 16Gi",
    "replicas": "must be an integer from 1 to 1000",
    "alternatives": "must be an object of at most 8 subrequests with numbers above 0 and up to 1000000",
    "latencySensitive": "must be true or false",
    "longKernels": "must be true or false",
}
_FIELDS = {"": [name for name in _RULES if "." not in name], "mps": ["threadPercent", "pinnedMemory"]}
_POLICIES = {"exclusive": "exclusive", "mps": "mps", "timeslice": "timeSlice", "timeslicing": "timeSlice"}
_SHAPE = f"write an object with apiVersion {API_VERSION}, kind {KIND} and the fields wanted"
_PATH = re.compile(r"\$\.(?P<field>\w+)(?:\.(?P<inner>\w+))?")

T = TypeVar("T", bound=_Parameters)
_Invalid = Callable[..., InvalidObjectError]


def decode_parameters(raw: bytes, *, object_name: str, field: str) -> GPUClaimParameters:
    """The parameters of one `opaque` config entry, given as JSON.

    Raises InvalidObjectError that names the object and the field's path below `field`.
    """

    def invalid(cause: str, inner: str = "", next_step: str = "") -> InvalidObjectError:
        path = f"{field}.{inner}" if field and inner else field or inner
        return InvalidObjectError(cause, object_name=object_name, field=path, next_step=next_step)

    if len(raw) > MAXIMUM_LENGTH:
        raise invalid(f"are longer than {MAXIMUM_LENGTH} bytes", next_step="write only what is needed")
    try:
        document = msgspec.json.decode(raw)
    except RecursionError:
        raise invalid("are nested too deeply", next_step=_SHAPE) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid(f"are not valid JSON ({error})", next_step=_SHAPE) from None
    _refuse_duplicates(raw, invalid)
    if not isinstance(document, dict):
        raise invalid(f"must be an object of kind {KIND}, not {_shown(document)}", next_step=_SHAPE)
    _require_kind(document, invalid)
    fields = {name: value for name, value in document.items() if name not in {"apiVersion", "kind"}}
    _require_known(fields, "", invalid)
    if isinstance(fields.get("mps"), dict):
        _require_known(fields["mps"], "mps", invalid)
    try:
        parameters = msgspec.convert(fields, GPUClaimParameters, strict=True)
    except msgspec.ValidationError as error:
        raise invalid(*_explain(str(error), fields)) from None
    if isinstance(parameters.mig_profile, str):
        return msgspec.structs.replace(parameters, mig_profile=parameters.mig_profile.lower())
    return parameters


def merge(*parameters: GPUClaimParameters) -> GPUClaimParameters:
    """One set of parameters from several, given in order: class first, then claim.

    Field by field the last one that states a field decides; null states the default. `mps` is merged field
    by field as well, `alternatives` as a whole.
    """
    return _merge(GPUClaimParameters, parameters)


def _merge(kind: type[T], parameters: tuple[T, ...]) -> T:
    stated: dict[str, Any] = {}
    for entry in parameters:
        for name in entry.__struct_fields__:
            value = getattr(entry, name)
            before = stated.get(name)
            if isinstance(value, MpsParameters) and isinstance(before, MpsParameters):
                stated[name] = _merge(MpsParameters, (before, value))
            elif value is not UNSET:
                stated[name] = value
    return kind(**stated)


def _require_kind(document: Mapping[str, Any], invalid: _Invalid) -> None:
    for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = document.get(name)
        if found != wanted:
            problem = "is missing" if found is None else f"is {_shown(found)}"
            raise invalid(
                f"{problem}; parameters for {DRIVER_NAME} have apiVersion {API_VERSION} and kind {KIND}",
                name,
                f"set {name}: {wanted}",
            )


def _refuse_duplicates(raw: bytes, invalid: _Invalid) -> None:
    """A field that stands twice: which of them holds would depend on who reads it."""

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice.extend(name for name in dict.fromkeys(names) if names.count(name) > 1)
        return dict(pairs)

    twice: list[str] = []
    json.loads(raw, object_pairs_hook=note)
    if twice:
        raise invalid("stands twice", _cut(twice[0]), "remove one")


def _require_known(fields: Mapping[str, Any], parent: str, invalid: _Invalid) -> None:
    known = _FIELDS[parent]
    for name in fields:
        if name not in known:
            by_lower_case = {field.lower(): field for field in known}
            close = difflib.get_close_matches(name.lower()[:64], by_lower_case, n=1)
            raise invalid(
                f"is not a field of {KIND}.{parent}".removesuffix("."),
                f"{parent}.{_cut(name)}".removeprefix("."),
                f"did you mean {by_lower_case[close[0]]}?" if close else f"the fields are {', '.join(known)}",
            )


def _explain(message: str, fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """Cause, path and next step of a msgspec error about the parameters."""
    match = _PATH.search(message)
    assert match is not None  # the fields are known and the whole is an object: the error is in one field
    path, value = match["field"], fields[match["field"]]
    if match["inner"]:
        path, value = f"{path}.{match['inner']}", value[match["inner"]]
    next_step = ""
    if path == "shPolicy" and isinstance(value, str):
        meant = _POLICIES.get(value.lower().replace("-", "").replace("_", ""))
        next_step = f"write {meant}" if meant else ""
    # Of a map, only its content can be wrong: showing it would not tell more than the rule.
    found = "" if path == "alternatives" and isinstance(value, dict) else f", not {_shown(value)}"
    return _RULES[path] + found, path, next_step


def _shown(value: Any) -> str:
    """A value for a message, cut to a length that fits an event."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str, limit: int = 64) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
