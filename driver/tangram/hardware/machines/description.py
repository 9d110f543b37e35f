"""What a machine description says: the schema of the YAML files and its rules."""

import itertools
import re
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta

from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.machines.migtables import (
    MigGeometry,
    check_geometry,
    load_mig_table,
    mig_tables,
)
from tangram.hardware.machines.schema import ApiVersion, LongText, Strict, Text, convert, did_you_mean
from tangram.hardware.pci import BUS_ID, PCIE_ROOT
from tangram.model.gpu import MigMode

MAXIMUM_GPUS = 64
MAXIMUM_FAULTS = 64
MAXIMUM_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of current drivers."""
SWITCH = "switch"
"""The key of `nvlinks` for links that end at the switch of the node."""

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class GpuModel(Strict, frozen=True, kw_only=True):
    """A product. Names as NVML prints them, `brand` and `architecture` as NVIDIA's DRA driver publishes them.

    `memory_mib` is NVML's total in MiB; null where the board reports none (unified memory).
    `multiprocessors` null where the driver cannot tell. `mig` names the table of the board's MIG profiles: of
    this file (`migTables`), else a shipped one (`tangram.hardware.machines.migtables`).
    """

    name: Text
    product_name: LongText
    brand: Text = "unknown"
    architecture: Text = "unknown"
    compute_capability: Annotated[
        str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]\Z", extra={"expected": "major.minor, such as 9.0"})
    ]
    memory_mib: Annotated[int, Meta(ge=1, le=2**24)] | None = msgspec.field(name="memoryMiB")
    multiprocessors: Annotated[int, Meta(ge=1, le=4096)] | None
    mig_mode: MigMode = "unsupported"
    mig: Text | None = None


class GpuPlace(Strict, frozen=True, kw_only=True):
    """One GPU of the machine: which product, and where it sits.

    `nvlinks` maps the PCI bus id of a linked GPU, or `switch`, to the number of links. `uuid` absent: derived
    from the node's name and the bus id. `minor` absent: the position in the list. `index` absent: the
    position among those that are not `absent`. `state`: `present`; `lost` = NVML still counts it, but it does
    not answer; `absent` = unplugged.
    """

    model: str
    uuid: str | None = None
    index: Annotated[int, Meta(ge=0, le=4095)] | None = None
    minor: Annotated[int, Meta(ge=0, le=4095)] | None = None
    pci_bus_id: str | None = msgspec.field(name="pciBusID", default=None)
    pcie_root: str | None = None
    numa_node: Annotated[int, Meta(ge=0, le=1023)] | None = None
    mig_mode: MigMode | None = None
    nvlinks: dict[str, Annotated[int, Meta(ge=1, le=MAXIMUM_LINKS)]] = msgspec.field(default_factory=dict)
    fabric_clique: Text | None = None
    state: Literal["present", "lost", "absent"] = "present"


class MachineDescription(Strict, frozen=True, kw_only=True):
    """A node's GPUs and driver, whose versions are empty where it does not tell.

    `gpus` is in NVML's order of indices. `virtual_machine`: they are passed to one. `faults` are the calls
    that fail, for tests of what happens then.
    """

    api_version: ApiVersion
    kind: Literal["MachineDescription"]
    driver_version: Annotated[str, Meta(max_length=64, pattern=r"\A[^\x00-\x1f\x7f]*\Z")]
    cuda_driver_version: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{1,2}\.[0-9]{1,2})?\Z", extra={"expected": "such as 13.0, empty where unknown"}
        ),
    ]
    models: Annotated[tuple[GpuModel, ...], Meta(max_length=MAXIMUM_GPUS)]
    gpus: Annotated[tuple[GpuPlace, ...], Meta(max_length=MAXIMUM_GPUS)]
    mig_tables: Annotated[dict[Text, MigGeometry], Meta(max_length=MAXIMUM_GPUS)] = msgspec.field(
        default_factory=dict
    )
    virtual_machine: bool = False
    faults: Annotated[tuple[Fault, ...], Meta(max_length=MAXIMUM_FAULTS)] = ()

    def model(self, name: str) -> GpuModel:
        """The model of that name (the rules guarantee it for every GPU of the description)."""
        return next(model for model in self.models if model.name == name)

    def mig_geometry(self, model: GpuModel) -> MigGeometry | None:
        """What MIG offers on a model of this description; None where it is not described."""
        if model.mig is None:
            return None
        return self.mig_tables.get(model.mig) or load_mig_table(model.mig)

    def indices(self) -> tuple[int | None, ...]:
        """NVML's index of each GPU, in the order of `gpus`; None for one that is absent."""
        count = itertools.count()
        return tuple(None if gpu.state == "absent" else _stated(gpu.index, next(count)) for gpu in self.gpus)


def _stated(value: int | None, default: int) -> int:
    return default if value is None else value


def parse_description(content: Any, *, object_name: str) -> MachineDescription:
    """The description in plain YAML or JSON content; InvalidObjectError names file and field."""
    description = convert(content, MachineDescription, object_name=object_name)
    _Rules(description, object_name).check()
    return description


class _Rules:
    """What the schema alone cannot say."""

    def __init__(self, description: MachineDescription, object_name: str) -> None:
        self._description = description
        self._object_name = object_name
        self._by_bus_id = {gpu.pci_bus_id: gpu for gpu in description.gpus if gpu.pci_bus_id is not None}

    def check(self) -> None:
        for name, geometry in self._description.mig_tables.items():
            check_geometry(geometry, object_name=self._object_name, field_name=f"migTables.{name}")
        self._check_models()
        for position, gpu in enumerate(self._description.gpus):
            self._check_place(f"gpus[{position}]", gpu)
        gpus = self._description.gpus
        self._refuse_duplicates("uuid", [gpu.uuid for gpu in gpus])
        self._refuse_duplicates("pciBusID", [gpu.pci_bus_id for gpu in gpus])
        self._refuse_duplicates("index", list(self._description.indices()))
        self._refuse_duplicates("minor", [_stated(gpu.minor, n) for n, gpu in enumerate(gpus)])
        for position, gpu in enumerate(gpus):
            self._check_links(f"gpus[{position}].nvlinks", gpu)

    def _check_models(self) -> None:
        names = [model.name for model in self._description.models]
        for position, name in enumerate(names):
            if name in names[:position]:
                self._fail(
                    f"models[{position}].name", f"a second model {name!r}", "give every model its own name"
                )
        for position, model in enumerate(self._description.models):
            self._check_mig(f"models[{position}].mig", model)

    def _check_mig(self, where: str, model: GpuModel) -> None:
        if model.mig is None:
            return
        known = [*self._description.mig_tables, *mig_tables()]
        if model.mig not in known:
            self._fail(
                where,
                f"no table {model.mig!r} of MIG profiles is in this file or shipped",
                f"{did_you_mean(model.mig, known)} tables: {', '.join(known)}".lstrip(),
            )
        if model.mig_mode == "unsupported":
            self._fail(where, "a table of MIG profiles, but migMode is unsupported", "set migMode: disabled")

    def _check_place(self, where: str, gpu: GpuPlace) -> None:
        models = [model.name for model in self._description.models]
        if gpu.model not in models:
            self._fail(
                f"{where}.model",
                f"no model {gpu.model[:64]!r} in this file",
                did_you_mean(gpu.model, models) or f"models here: {', '.join(models) or 'none'}",
            )
        if gpu.uuid is not None and not _UUID.fullmatch(gpu.uuid):
            self._fail(
                f"{where}.uuid",
                f"{gpu.uuid[:64]!r} is not a GPU UUID",
                "write GPU- and a UUID, or leave it out to have it derived",
            )
        if gpu.pci_bus_id is not None and not BUS_ID.fullmatch(gpu.pci_bus_id):
            self._fail(
                f"{where}.pciBusID",
                f"{gpu.pci_bus_id[:64]!r} is not a PCI bus id",
                "write it in lower case like 0000:07:00.0",
            )
        if gpu.pcie_root is not None and not PCIE_ROOT.fullmatch(gpu.pcie_root):
            self._fail(
                f"{where}.pcieRoot", f"{gpu.pcie_root[:64]!r} is not a PCIe root", "write it like pci0000:00"
            )

    def _refuse_duplicates(self, field: str, values: list[Any]) -> None:
        first: dict[Any, int] = {}
        for position, value in enumerate(values):
            if value is not None and first.setdefault(value, position) != position:
                self._fail(
                    f"gpus[{position}].{field}",
                    f"{value} is taken by gpus[{first[value]}] already",
                    "give every GPU its own",
                )

    def _check_links(self, where: str, gpu: GpuPlace) -> None:
        if sum(gpu.nvlinks.values()) > MAXIMUM_LINKS:
            self._fail(where, f"more than {MAXIMUM_LINKS} links", "a GPU has 36 NVLinks at most")
        if SWITCH in gpu.nvlinks and len(gpu.nvlinks) > 1:
            self._fail(where, "links to a switch and to GPUs", "write either the switch or the linked GPUs")
        for peer_bus_id, links in gpu.nvlinks.items():
            if peer_bus_id == SWITCH:
                continue
            field = f"{where}.{peer_bus_id[:64]}"
            peer = self._by_bus_id.get(peer_bus_id)
            if peer is None:
                self._fail(
                    field,
                    "no GPU of this file has that PCI bus id",
                    did_you_mean(peer_bus_id, [SWITCH, *self._by_bus_id]),
                )
            if peer is gpu:
                self._fail(field, "a GPU linked to itself", "remove the link")
            back = peer.nvlinks.get(gpu.pci_bus_id or "", 0)
            if back != links:
                self._fail(
                    field,
                    f"{links} links there, but {back} links back",
                    "links have two ends: write the same number on both GPUs",
                )

    def _fail(self, field: str, problem: str, next_step: str) -> NoReturn:
        raise InvalidObjectError(problem, object_name=self._object_name, field=field, next_step=next_step)
