"""What this node owes its GPUs beyond any claim: a file for each, which outlives claims and their held files.

A GPU keeps its compute mode and its MIG instances while it is lost to the driver, and a claim's held file can
be lost too. What stands here is ours all the same, and is put right once the GPU answers and nobody needs it:

- the compute mode that was found, noted before the first claim sets another, gone once it is back;
- MIG instances whose claims have ended while the GPU did not answer.

A reboot ends both, as it does what they are about. Whoever writes holds the GPU's lock.
"""

from pathlib import Path

import msgspec

from tangram.base.atomicfile import make_directory, remove_leftovers, state_error, write_atomically
from tangram.base.errors import StateError
from tangram.base.logs import get_logger
from tangram.model.gpu import GpuUuid
from tangram.node.held import ComputeModeStep, MigStep

_SUFFIX = ".json"
_MAXIMUM_FILE_BYTES = 64 * 1024

_log = get_logger("node")


class GpuNote(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The file of a GPU. Fields are added with defaults only, so that any two versions can read it."""

    uuid: str
    boot_id: str
    compute_mode: ComputeModeStep | None = None
    instances: tuple[MigStep, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is owed."""
        return self.compute_mode is None and not self.instances


class GpuNotes:
    """The directory of notes. Blocking; every method may raise StateError.

    What cannot be read counts as nothing, and what is of another boot: a mode is then as found, an instance
    foreign.
    """

    def __init__(self, directory: Path, *, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id

    def create(self) -> None:
        """Makes the directory, and removes what cut-off writes and other boots left in it."""
        make_directory(self._directory)
        remove_leftovers(self._directory, name_prefix="")
        for gpu in self.gpus():
            if (note := self.read(gpu)).is_empty:
                try:
                    self.write(note)
                except StateError as error:
                    # It costs what is noted of this GPU, not the node.
                    _log.error("gpu_note_stays", gpu=gpu, error=error.cause, next_step=error.next_step)

    def gpus(self) -> list[GpuUuid]:
        """The GPUs that have a file, in order."""
        try:
            return sorted(
                GpuUuid(path.name.removesuffix(_SUFFIX)) for path in self._directory.glob(f"GPU-*{_SUFFIX}")
            )
        except OSError as error:
            raise state_error(error, self._directory, "cannot be read") from error

    def read(self, gpu: GpuUuid) -> GpuNote:
        """What is owed to the GPU; an empty note for nothing."""
        nothing = GpuNote(uuid=gpu, boot_id=self._boot_id)
        try:
            with self._path(gpu).open("rb") as file:
                note = msgspec.json.decode(file.read(_MAXIMUM_FILE_BYTES), type=GpuNote)
        except FileNotFoundError:
            return nothing
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            _log.error("gpu_note_unusable", gpu=gpu, error=str(error))
            return nothing
        return note if (note.uuid, note.boot_id) == (gpu, self._boot_id) else nothing

    def write(self, note: GpuNote) -> None:
        """Writes a note, in one step; an empty one is removed."""
        path = self._path(GpuUuid(note.uuid))
        if not note.is_empty:
            write_atomically(path, msgspec.json.encode(note), mode=0o600, sync=False)
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise state_error(error, path, "cannot be removed") from error

    def owe_mode(self, gpu: GpuUuid, step: ComputeModeStep | None) -> None:
        """The GPU's compute mode is to be put back as this step says; None: it is back."""
        note = self.read(gpu)
        if note.compute_mode != step or step is None:
            self.write(msgspec.structs.replace(note, compute_mode=step))

    def owe_instance(self, step: MigStep) -> None:
        """The instance of this step is to be destroyed."""
        note = self.read(GpuUuid(step.uuid))
        if step not in note.instances:
            self.write(msgspec.structs.replace(note, instances=(*note.instances, step)))

    def pay_instance(self, step: MigStep) -> None:
        """The instance of this step is gone."""
        note = self.read(GpuUuid(step.uuid))
        left = tuple(each for each in note.instances if each != step)
        self.write(msgspec.structs.replace(note, instances=left))

    def instances(self) -> tuple[MigStep, ...]:
        """The instances on all GPUs that are to be destroyed."""
        return tuple(step for gpu in self.gpus() for step in self.read(gpu).instances)

    def _path(self, gpu: GpuUuid) -> Path:
        return self._directory / f"{gpu}{_SUFFIX}"
