"""Pods, Deployments and Jobs: the types of what the playground's stand-ins read, and the names in them."""

from typing import Annotated, Any

import msgspec

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class _Struct(msgspec.Struct, rename="camel", kw_only=True):
    """Fields that are null or empty have been left out before; all others are not looked at."""


class _Variable(_Struct):
    name: str
    value: str = ""


class _ClaimOfContainer(_Struct):
    name: str
    request: str = ""


class _Resources(_Struct):
    claims: list[_ClaimOfContainer] = []


class _Container(_Struct):
    name: _Name
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[_Variable] = []
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _ClaimOfPod(_Struct):
    name: _Name
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class _PodSpec(_Struct):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    resource_claims: list[_ClaimOfPod] = []
    node_selector: dict[str, str] = {}
    scheduling_gates: list[dict[str, Any]] = []
    termination_grace_period_seconds: Annotated[int, msgspec.Meta(ge=0)] = 30


class _TemplateMetadata(_Struct):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _PodTemplate(_Struct):
    spec: _PodSpec
    metadata: _TemplateMetadata = msgspec.field(default_factory=_TemplateMetadata)


class _DeploymentSpec(_Struct):
    template: _PodTemplate
    replicas: _Count = 1


class _JobSpec(_Struct):
    template: _PodTemplate
    completions: _Count = 1
    parallelism: _Count = 1
    backoff_limit: _Count = 6


def validate_pod(new: Any, _old: Any, _version: Any) -> list[str]:
    """Of a Pod."""
    return _problems(new, _PodSpec)


def validate_deployment(new: Any, _old: Any, _version: Any) -> list[str]:
    """Of a Deployment."""
    return _problems(new, _DeploymentSpec)


def validate_job(new: Any, _old: Any, _version: Any) -> list[str]:
    """Of a Job."""
    return _problems(new, _JobSpec)


def _problems(new: Any, kind: type[_PodSpec | _DeploymentSpec | _JobSpec]) -> list[str]:
    try:
        spec = msgspec.convert(new.get("spec") or {}, kind)
    except msgspec.ValidationError as error:
        cause, _, path = str(error).partition(" - at `$")
        return [f"spec{path.removesuffix('`')}: Invalid value: {cause}"]
    pod = spec if isinstance(spec, _PodSpec) else spec.template.spec
    names = [container.name for container in [*pod.init_containers, *pod.containers]]
    doubled = sorted({name for name in names if names.count(name) > 1})
    return [f'spec.containers: Duplicate value: "{name}"' for name in doubled]
