"""What an administrator asks NVML: every answer it may give, and refusals."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tangram.base.errors import DriverUnavailableError, GpuLostError
from tangram.hardware.nvmldetails import GpuDetails, gpu_details
from tangram.model.gpu import GpuUuid

GPU = GpuUuid("GPU-00000000-0000-4000-8000-000000000001")


class Nvml:
    """The three calls; an int in place of an answer is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handle = 0
        self.persistence: Any = SimpleNamespace(on=1)
        self.fabric: Any = SimpleNamespace(state=0, status=0)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", self._handle)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetPersistenceMode", self._persistence)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfoV", self._fabric)

    def _handle(self, uuid: str) -> object:
        assert uuid == GPU
        self._fail(self.handle)
        return object()

    def _persistence(self, _: object) -> int:
        self._fail(self.persistence)
        return int(self.persistence.on)

    def _fabric(self, _: object, reference: Any) -> None:
        self._fail(self.fabric)
        reference._obj.state, reference._obj.status = self.fabric.state, self.fabric.status

    @staticmethod
    def _fail(answer: Any) -> None:
        if isinstance(answer, int) and answer:
            raise pynvml.NVMLError(answer)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return Nvml(monkeypatch)


@pytest.mark.parametrize(
    ("state", "status", "fabric"),
    [
        (0, 0, "none"),
        (1, 0, "waiting"),
        (2, 0, "waiting"),
        (3, 0, "ready"),
        (3, 999, "failed"),
        (77, 0, "none"),
    ],
)
def test_states_of_the_fabric(nvml: Nvml, state: int, status: int, fabric: Any) -> None:
    nvml.fabric = SimpleNamespace(state=state, status=status)
    assert gpu_details(GPU) == GpuDetails(uuid=GPU, persistence=True, fabric=fabric)


def test_what_is_not_told_costs_that_alone(nvml: Nvml) -> None:
    nvml.persistence = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert gpu_details(GPU) == GpuDetails(uuid=GPU, fabric="none")
    nvml.persistence, nvml.fabric = SimpleNamespace(on=0), pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert gpu_details(GPU) == GpuDetails(uuid=GPU, persistence=False)


def test_a_lost_gpu_and_a_driver_that_is_gone(nvml: Nvml) -> None:
    nvml.handle = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(GpuLostError):
        gpu_details(GPU)
    nvml.handle, nvml.fabric = 0, pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(DriverUnavailableError):
        gpu_details(GPU)
