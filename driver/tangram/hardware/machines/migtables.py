"""Which MIG profiles a board offers, and where on its memory slices they may lie.

One shipped file for each board (`mig/<name>.yaml`); machine descriptions name it as `mig`. The real GPUs tell
theirs through NVML; these tables are for simulated ones. Terms as in the NVML API reference
(nvmlGpuInstanceProfileInfo_t, nvmlGpuInstancePlacement_t) and the MIG user guide of NVIDIA.
"""

import functools
from collections.abc import Sequence
from importlib import resources
from typing import Annotated, Any, Literal, NoReturn

from msgspec import Meta, field

from tangram.base.errors import InvalidObjectError
from tangram.base.strictyaml import parse_yaml
from tangram.hardware.machines.schema import ApiVersion, Strict, convert
from tangram.model import mig

_DIRECTORY = "mig"
_SUFFIX = ".yaml"
_Count = Annotated[int, Meta(ge=0, le=64)]
_Placement = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,2}:[1-9][0-9]?\Z", extra={"expected": "start:size in memory slices, quoted"}),
]


class MigEngines(Strict, frozen=True, kw_only=True):
    """Engines of one instance; None where no source tells the number."""

    copy: _Count | None = None
    decoder: _Count | None = None
    encoder: _Count | None = None
    jpeg: _Count | None = None
    ofa: _Count | None = None


class MigProfile(Strict, frozen=True, kw_only=True):
    """A GPU instance profile.

    `enum` is the argument of nvmlDeviceGetGpuInstanceProfileInfo (the same on all boards), `id` what
    nvidia-smi prints and nvmlDeviceCreateGpuInstance takes (the board's own). `memory_mib` and
    `multiprocessors` of one instance; None where sources are silent or disagree. `placements` are
    `start:size` in memory slices.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[1-9]g\.[1-9][0-9]{0,2}gb([+-][a-z.]+)*\Z",
            extra={"expected": "a profile of GPU instances, such as 3g.40gb"},
        ),
    ]
    enum: Annotated[int, Meta(ge=0, le=17)]
    id: Annotated[int, Meta(ge=0, le=255)]
    memory_mib: Annotated[int, Meta(ge=1, le=2**24)] | None = field(name="memoryMiB", default=None)
    multiprocessors: Annotated[int, Meta(ge=1, le=4096)] | None = None
    engines: MigEngines = MigEngines()
    max_instances: Annotated[int, Meta(ge=1, le=64)]
    placements: Annotated[tuple[_Placement, ...], Meta(min_length=1, max_length=64)]

    @property
    def compute_slices(self) -> int:
        """Compute slices of one instance: the number before the `g` of its name."""
        return int(self.name.partition("g")[0])

    def spans(self) -> tuple[tuple[int, int], ...]:
        """The placements as (start, size)."""
        pairs = (placement.split(":") for placement in self.placements)
        return tuple((int(start), int(size)) for start, size in pairs)


class MigGeometry(Strict, frozen=True, kw_only=True):
    """The profiles of a board, and the slices that their instances share."""

    memory_slices: Annotated[int, Meta(ge=1, le=64)]
    compute_slices: Annotated[int, Meta(ge=1, le=64)]
    profiles: Annotated[tuple[MigProfile, ...], Meta(min_length=1, max_length=32)]


class MigTable(MigGeometry, frozen=True, kw_only=True):
    """A geometry as a file of its own."""

    api_version: ApiVersion
    kind: Literal["MIGTable"]


@functools.cache
def mig_tables() -> tuple[str, ...]:
    """The names of the shipped tables, sorted."""
    files = resources.files(__package__).joinpath(_DIRECTORY).iterdir()
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)))


@functools.cache
def load_mig_table(name: str) -> MigTable:
    """The shipped table of that name (one of `mig_tables`)."""
    data = resources.files(__package__).joinpath(_DIRECTORY, name + _SUFFIX).read_bytes()
    return parse_mig_table(data, source=name)


def parse_mig_table(data: bytes, *, source: str) -> MigTable:
    """The table in the text of `source`; InvalidObjectError names file and field."""
    object_name = f"MIG table {source[:256]}"
    content = parse_yaml(data, object_name=object_name).content
    table = convert(content, MigTable, object_name=object_name)
    check_geometry(table, object_name=object_name)
    return table


def check_geometry(geometry: MigGeometry, *, object_name: str, field_name: str = "") -> None:
    """Raises InvalidObjectError for what the schema alone cannot say. `field_name`: where it stands."""
    _Rules(geometry, object_name, prefix=f"{field_name}." if field_name else "").check()


@functools.cache
def offered_profiles(geometry: MigGeometry) -> tuple[mig.MigProfile, ...]:
    """The profiles as a driver offers them, in the order of their numbers; 0 or None: not in the table."""
    return tuple(
        mig.MigProfile(
            name=profile.name,
            number=profile.enum,
            profile_id=profile.id,
            compute_slices=profile.compute_slices,
            memory_bytes=profile.memory_mib and profile.memory_mib * 2**20,
            multiprocessors=profile.multiprocessors,
            max_instances=profile.max_instances,
            placements=tuple(mig.MigPlacement(start, size) for start, size in sorted(profile.spans())),
            copy_engines=profile.engines.copy or 0,
            decoders=profile.engines.decoder or 0,
            encoders=profile.engines.encoder or 0,
            jpeg_engines=profile.engines.jpeg or 0,
            ofa_engines=profile.engines.ofa or 0,
        )
        for profile in sorted(geometry.profiles, key=lambda profile: profile.enum)
    )


def geometry_of(profiles: Sequence[mig.MigProfile]) -> MigGeometry | None:
    """The table that offers these profiles; None where none can hold them (an odd name, no number)."""
    if not profiles:
        return None
    content = {
        "memorySlices": mig.memory_slices(profiles),
        "computeSlices": mig.compute_slices(profiles),
        "profiles": [_content(profile) for profile in profiles],
    }
    try:
        geometry = convert(content, MigGeometry, object_name="MIG profiles of a GPU")
        check_geometry(geometry, object_name="MIG profiles of a GPU")
    except InvalidObjectError:
        return None
    return geometry


def _content(profile: mig.MigProfile) -> dict[str, object]:
    return {
        "name": profile.name,
        "enum": profile.number,
        "id": profile.profile_id,
        "memoryMiB": profile.memory_bytes and profile.memory_bytes // 2**20,
        "multiprocessors": profile.multiprocessors,
        "engines": {
            "copy": profile.copy_engines,
            "decoder": profile.decoders,
            "encoder": profile.encoders,
            "jpeg": profile.jpeg_engines,
            "ofa": profile.ofa_engines,
        },
        "maxInstances": profile.max_instances,
        "placements": [f"{place.start}:{place.size}" for place in profile.placements],
    }


def shipped_name(profiles: Sequence[mig.MigProfile]) -> str | None:
    """The shipped table that offers the same."""
    return next(
        (name for name in mig_tables() if offered_profiles(load_mig_table(name)) == tuple(profiles)), None
    )


class _Rules:
    """What the schema alone cannot say."""

    def __init__(self, table: MigGeometry, object_name: str, *, prefix: str) -> None:
        self._table = table
        self._object_name = object_name
        self._prefix = prefix

    def check(self) -> None:
        for key in ("name", "enum", "id"):
            self._refuse_duplicates(key, [getattr(profile, key) for profile in self._table.profiles])
        for position, profile in enumerate(self._table.profiles):
            self._check_profile(f"profiles[{position}]", profile)

    def _refuse_duplicates(self, key: str, values: list[Any]) -> None:
        for position, value in enumerate(values):
            if value in values[:position]:
                self._fail(f"profiles[{position}].{key}", f"a second profile with {value}", "write it once")

    def _check_profile(self, where: str, profile: MigProfile) -> None:
        spans = profile.spans()
        for start, size in spans:
            if start + size > self._table.memory_slices:
                self._fail(
                    f"{where}.placements",
                    f"{start}:{size} ends beyond the {self._table.memory_slices} memory slices",
                    "write start:size in memory slices",
                )
        if len(set(spans)) < len(spans):
            self._fail(f"{where}.placements", "a placement stands twice", "write each once")
        if profile.max_instances > len(spans):
            self._fail(
                f"{where}.maxInstances",
                f"{profile.max_instances} instances, but {len(spans)} placements",
                "every instance needs a placement of its own",
            )
        if profile.max_instances * profile.compute_slices > self._table.compute_slices:
            self._fail(
                f"{where}.maxInstances",
                f"{profile.max_instances} instances of {profile.compute_slices} compute slices, but the board"
                f" has {self._table.compute_slices}",
                "compare with nvidia-smi mig -lgip",
            )

    def _fail(self, field_name: str, problem: str, next_step: str) -> NoReturn:
        raise InvalidObjectError(
            problem, object_name=self._object_name, field=self._prefix + field_name, next_step=next_step
        )
