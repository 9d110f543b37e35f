"""Settings: one precedence for every command: flag > environment > file > default.

A command's settings are one msgspec Struct with fields `Annotated[type, msgspec.Meta(description=...)]`; the
Struct alone decides flag (`--node-name`), environment variable (`TANGRAM_NODE_NAME`) and key of the YAML file
(`nodeName`). `Meta(extra={"unit": ..., "expected": ...})` adds the unit and, for patterns, what to write.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from tangram.base.errors import ConfigurationError
from tangram.base.logs import LogFormat, LogLevel
from tangram.base.settingsfile import FileValue, read_settings_file
from tangram.base.wrongvalues import kind_in_words, problem_and_path

API_VERSION = "tangram/v1alpha1"
"""Of everything a command prints or reads as its own."""
ENVIRONMENT_PREFIX = "TANGRAM_"
NODES_KEY = "nodes"
"""The file's key of per-node overrides: node name → settings."""

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
DNS_LABEL = rf"\A{_LABEL}\Z"
"""As Kubernetes wants names of namespaces; `$` would let a line break pass."""
DNS_SUBDOMAIN = rf"\A{_LABEL}(\.{_LABEL})*\Z"
"""As Kubernetes wants most other names."""
# A line break would forge a line of a log, a NUL end a path early, a surrogate fail when it is printed.
_PRINTABLE = r"[^\x00-\x1f\x7f\ud800-\udfff]*"
_PORT = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
Text = Meta(max_length=1024, pattern=rf"\A{_PRINTABLE}\Z", extra={"expected": "one line of text"})
AbsolutePath = Meta(max_length=1024, pattern=rf"\A/{_PRINTABLE}\Z", extra={"expected": "an absolute path"})
MaybeAbsolutePath = Meta(
    max_length=1024, pattern=rf"\A(/{_PRINTABLE})?\Z", extra={"expected": "an absolute path, or nothing"}
)
KubeletDir = Annotated[str, Meta(description="the kubelet's root directory"), AbsolutePath]
DriverRoot = Annotated[
    str,
    Meta(description="root of the GPU driver's installation, e.g. /run/nvidia/driver with the GPU Operator"),
    AbsolutePath,
]
DriverRootMount = Annotated[
    str,
    Meta(description="where a container of this process sees driverRoot; empty: at the same path"),
    MaybeAbsolutePath,
]
MetricsAddress = Meta(
    description="address that serves /metrics, /healthz and /readyz; empty: none",
    pattern=rf"\A([!-~]{{0,253}}:{_PORT})?\Z",
    extra={"expected": "[host]:port with a port up to 65535, or nothing"},
)

T = TypeVar("T", bound="CommandSettings")


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every command that runs for long can be told."""

    kubeconfig: Annotated[
        str,
        Meta(description="kubeconfig file; empty: in-cluster, else $KUBECONFIG, else ~/.kube/config"),
        Text,
    ] = ""
    metrics_address: Annotated[str, MetricsAddress] = ":9464"
    log_level: Annotated[LogLevel, Meta(description="least severe level that is logged")] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="json for machines, console for people; to standard error")
    ] = "json"
    shutdown_grace_s: Annotated[
        float,
        Meta(
            description="how long running calls may take to finish after SIGTERM",
            ge=0,
            le=60,
            extra={"unit": "seconds"},
        ),
    ] = 1.0

    def contradiction(self) -> tuple[str, str] | None:
        """The keys of two settings of which the first must not be larger than the second, but is."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its names in every source, its type and what it means.

    `default` is `msgspec.NODEFAULT` for a setting that must be given. `choices` is empty where any value of
    the type may stand.
    """

    name: str
    key: str
    type: Any
    default: Any
    description: str
    unit: str = ""
    expected: str = ""
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[T]):
    """Settings as they hold, and where each came from (`key` → source in words).

    `warnings` name environment variables that look like a mistyped setting.
    """

    settings: T
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def report(self) -> dict[str, dict[str, Any]]:
        """`key` → {value, from}: what the command logs at its start."""
        return {key: {"value": value, "from": self.origins[key]} for key, value in self._by_key().items()}

    def as_object(self) -> dict[str, Any]:
        """The effective settings as an object that is also a valid settings file."""
        return {
            "apiVersion": API_VERSION,
            "kind": type(self.settings).__name__,
            **self._by_key(),
        }

    def _by_key(self) -> dict[str, Any]:
        return {
            setting.key: getattr(self.settings, setting.name) for setting in settings_of(type(self.settings))
        }


def settings_of(kind: type[CommandSettings]) -> tuple[Setting, ...]:
    """The settings of a Struct: its own first, then those of every command."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _setting(field, hints[field.name])
        for shared in (False, True)
        for field in msgspec.structs.fields(kind)
        if (field.name in CommandSettings.__struct_fields__) is shared
    )


def _setting(field: msgspec.structs.FieldInfo, hint: Any) -> Setting:
    description, plain = "", hint
    extra: dict[str, str] = {}
    if get_origin(hint) is Annotated:
        plain, *annotations = get_args(hint)
        for meta in annotations:
            if isinstance(meta, Meta):
                description = meta.description or description
                extra |= meta.extra or {}
    return Setting(
        name=field.name,
        key=field.encode_name,
        type=hint,
        default=field.default,
        description=description,
        unit=extra.get("unit", ""),
        expected=extra.get("expected", ""),
        choices=get_args(plain) if get_origin(plain) is Literal else (),
    )


def load_settings(
    kind: type[T],
    *,
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    config_file: str = "",
    per_node: bool = False,
) -> Loaded[T]:
    """The settings of a command.

    `flags` maps setting names to the texts given on the command line. With `per_node` the file may hold
    `nodes: {<node name>: {…}}`; the entry of this node wins over the rest of the file. Every value of every
    source is checked, also where another source wins. Raises ConfigurationError naming source and setting.
    """
    known = settings_of(kind)
    values: dict[str, Any] = {setting.name: setting.default for setting in known if not setting.required}
    origins = {setting.key: "default" for setting in known}

    def take(layer: Mapping[str, tuple[Any, str]]) -> None:
        for setting in known:
            if setting.name in layer:
                values[setting.name], origins[setting.key] = layer[setting.name]

    given = _from_environment(known, environment) | _from_flags(known, flags)
    if config_file:
        common, nodes = _from_file(kind, known, config_file, per_node=per_node)
        take(common)
        node_name = given.get("node_name", common.get("node_name", ("", "")))[0]
        take(nodes.get(node_name, {}))
    take(given)
    missing = next((setting for setting in known if setting.name not in values), None)
    if missing is not None:
        raise ConfigurationError(
            f"{missing.key} is not set",
            next_step=f"give {missing.flag}, {missing.environment} or {missing.key} in the settings file"
            f" ({missing.description})",
        )
    settings = kind(**values)
    if (keys := settings.contradiction()) is not None:
        _refuse_contradiction(keys, values={s.key: values[s.name] for s in known}, origins=origins)
    return Loaded(settings=settings, origins=origins, warnings=_suspicious(known, environment))


def _refuse_contradiction(
    keys: tuple[str, str], *, values: Mapping[str, Any], origins: Mapping[str, str]
) -> NoReturn:
    smaller, larger = (f"{key} ({values[key]:g}, {origins[key]})" for key in keys)
    raise ConfigurationError(
        f"{smaller} is larger than {larger}", next_step=f"lower {keys[0]}, or raise {keys[1]}"
    )


def _from_flags(known: Iterable[Setting], flags: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {
        setting.name: (_convert(setting, flags[setting.name], source=f"flag {setting.flag}"), "flag")
        for setting in known
        if setting.name in flags
    }


def _from_environment(known: Iterable[Setting], environment: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    layer: dict[str, tuple[Any, str]] = {}
    for setting in known:
        if (text := environment.get(setting.environment)) is not None:
            source = f"environment variable {setting.environment}"
            layer[setting.name] = (_convert(setting, text, source=source), source)
    return layer


def _from_file(
    kind: type[CommandSettings], known: tuple[Setting, ...], path: str, *, per_node: bool
) -> tuple[dict[str, tuple[Any, str]], dict[str, dict[str, tuple[Any, str]]]]:
    """The file's settings, and those of each of its nodes."""
    content = read_settings_file(path)
    for key, wanted in (("apiVersion", API_VERSION), ("kind", kind.__name__)):
        value = content.pop(key, None)
        if value is not None and value.value != wanted:
            raise ConfigurationError(
                f"{value.where}: {key} is {_shown(value.value)}, expected {wanted}",
                next_step="point --config at a settings file of this command",
            )
    nodes = content.pop(NODES_KEY, None) if per_node else None
    common = _file_layer(known, content, origin=f"file {path}")
    if nodes is None:
        return common, {}
    for name, entry in nodes.mapping(NODES_KEY).items():
        if not re.search(DNS_SUBDOMAIN, name):
            raise ConfigurationError(
                f"{entry.where}: {NODES_KEY}.{_shown(name)} is not the name of a node",
                next_step="kubectl get nodes shows their names",
            )
    per_node_settings = tuple(setting for setting in known if setting.name != "node_name")
    layers = {
        name: _file_layer(
            per_node_settings,
            entry.mapping(f"{NODES_KEY}.{name}"),
            origin=f"file {path}, {NODES_KEY}.{name}",
            prefix=f"{NODES_KEY}.{name}.",
        )
        for name, entry in nodes.mapping(NODES_KEY).items()
    }
    return common, layers


def _file_layer(
    known: Iterable[Setting], content: Mapping[str, FileValue], *, origin: str, prefix: str = ""
) -> dict[str, tuple[Any, str]]:
    by_key = {setting.key: setting for setting in known}
    layer: dict[str, tuple[Any, str]] = {}
    for key, value in content.items():
        setting = by_key.get(key)
        if setting is None:
            raise ConfigurationError(
                f"{value.where}: unknown key {_shown(prefix + key)}", next_step=_did_you_mean(key, by_key)
            )
        converted = _convert(setting, value.value, source=f"{value.where}: {prefix}{key}", strict=True)
        layer[setting.name] = (converted, origin)
    return layer


def _convert(setting: Setting, value: Any, *, source: str, strict: bool = False) -> Any:
    """A value of the setting's type; texts of flags and environment are read as that type."""
    try:
        return msgspec.convert(value, setting.type, strict=strict)
    except UnicodeEncodeError:  # bytes of the command line or the environment
        raise ConfigurationError(
            f"{source}: {_shown(value)} is not UTF-8", next_step="write it in UTF-8"
        ) from None
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{source}: {_problem(setting, value, error)}", next_step=f"{setting.key}: {setting.description}"
        ) from None


def _problem(setting: Setting, value: Any, error: msgspec.ValidationError) -> str:
    if value is None:
        return "is null (leave the key out to use the default)"
    if isinstance(value, str) and setting.choices:
        return f"expected one of {', '.join(setting.choices)}, got {_shown(value)}"
    if isinstance(value, str) and setting.expected:
        return f"expected {setting.expected}, got {_shown(value)}"
    problem, _ = problem_and_path(error)
    return f"{problem} (value {_shown(value)})"


def _shown(value: Any) -> str:
    """A value for an error message, cut to what a line can hold."""
    text = repr(value) if isinstance(value, str | int | float | bool) else kind_in_words(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = closest(word, known)
    return f"did you mean {close}?" if close else f"known keys: {', '.join(sorted(known))}"


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word nearest to a mistyped one, ignoring case."""
    lowered = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=cutoff)
    return lowered[found[0]] if found else None


def _suspicious(known: Iterable[Setting], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Environment variables that are nearly a setting's.

    Unknown ones as such are no error: Kubernetes itself adds variables named after Services.
    """
    names = {setting.environment for setting in known}
    return tuple(
        f"{variable} is not a setting; did you mean {close}?"
        for variable in sorted(environment)
        if variable.startswith(ENVIRONMENT_PREFIX)
        and variable not in names
        and (close := closest(variable, names, cutoff=0.9))
    )
