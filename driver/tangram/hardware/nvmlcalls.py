"""Calls into NVML: which error costs an attribute, which a GPU, and which the driver."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pynvml

from tangram.base.errors import DriverUnavailableError, HardwareError
from tangram.hardware.driverroot import find_library, resolve
from tangram.hardware.refusals import (
    DRIVER_CODES,
    GPU_CODES,
    REFUSALS,
    NvmlCode,
    action_error,
    driver_error,
    lost_error,
)

T = TypeVar("T")

_LIBRARY = "libnvidia-ml.so.1"


def load_library(driver_root: Path) -> None:
    """Loads the driver's own NVML, so that pynvml's later load by SONAME finds that one.

    DriverUnavailableError where there is none below the driver's root, or it cannot be loaded.
    """
    if pynvml.nvmlLib is not None:
        return
    library = find_library(driver_root, _LIBRARY)
    if library is None:
        if driver_root == Path("/"):
            return  # the loader may still know it: LD_LIBRARY_PATH, ld.so.cache
        raise DriverUnavailableError(
            f"no {_LIBRARY} below the driver root {driver_root}",
            next_step="wait for the driver to be installed, or correct the driver root",
        )
    try:
        ctypes.CDLL(str(resolve(driver_root, library) or library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DriverUnavailableError(
            f"{library} cannot be loaded: {error}", next_step="check that the driver is installed completely"
        ) from error


def ask_driver(query: Callable[[], T]) -> T:
    """An answer that nothing works without; any error is DriverUnavailableError."""
    try:
        return query()
    except (pynvml.NVMLError, UnicodeDecodeError) as error:
        raise driver_unavailable(error) from error


def ask_system(query: Callable[[], T], default: T) -> T:
    """An answer about the driver, or `default` where it refuses; DriverUnavailableError if it is gone."""
    try:
        return query()
    except UnicodeDecodeError:
        return default
    except pynvml.NVMLError as error:
        if error.value in DRIVER_CODES:
            raise driver_unavailable(error) from error
        return default


class GpuHandle:
    """One GPU as NVML knows it. `label` names it in errors: its UUID, else `index <n>`."""

    def __init__(self, handle: Any, label: str) -> None:
        self.handle = handle
        self.label = label

    def ask(self, query: Callable[..., T], default: T, *arguments: int) -> T:
        """An answer about the GPU, or `default` where NVML refuses or fails this one call.

        GpuLostError if the GPU is lost, DriverUnavailableError if the driver is.
        """
        try:
            return query(self.handle, *arguments)
        except UnicodeDecodeError:
            return default
        except pynvml.NVMLError as error:
            if error.value in DRIVER_CODES | GPU_CODES:
                self._fail(error)
            return default

    def ask_or_refused(self, query: Callable[[Any], T], default: T) -> T:
        """An answer, or `default` where the driver works but refuses; any other error as of `demand`."""
        try:
            return query(self.handle)
        except pynvml.NVMLError as error:
            if error.value in REFUSALS:
                return default
            self._fail(error)

    def demand(self, query: Callable[[Any], T]) -> T:
        """An answer that the GPU is useless without: any error is GpuLostError (or the driver's)."""
        try:
            return query(self.handle)
        except (pynvml.NVMLError, UnicodeDecodeError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        raise gpu_error(error, label=self.label) from error


def gpu_error(error: Exception, *, label: str) -> HardwareError:
    """What an error of NVML means for the GPU it was asked about."""
    if getattr(error, "value", None) in DRIVER_CODES:
        return driver_unavailable(error)
    return lost_error(label, _text(error))


def refused(error: pynvml.NVMLError, *, label: str, action: str) -> HardwareError:
    """What it means that NVML failed an action on a GPU."""
    return action_error(error.value, label=label, action=action, text=_text(error))


def driver_unavailable(error: Exception) -> DriverUnavailableError:
    """The driver does not work, and what to do about it."""
    return driver_error(getattr(error, "value", NvmlCode.UNKNOWN), _text(error))


def _text(error: Exception) -> str:
    # An error that pynvml has no text for makes it ask the library, which may itself misbehave.
    try:
        text = str(error)
    except (pynvml.NVMLError, UnicodeDecodeError):
        text = "unknown error"
    return f"{text.rstrip('.')} (code {getattr(error, 'value', 'none')})"
