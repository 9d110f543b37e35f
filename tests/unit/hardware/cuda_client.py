"""A CUDA program without a toolkit: the driver's API through ctypes, and a kernel in PTX.

`python cuda_client.py MIB …` computes on the first GPU that its environment shows it, then allocates these
sizes one after the other. Prints one JSON object: what the kernel has written, the return code of each
allocation (0: done, 2: out of memory; CUresult of the driver API), and the GPU's memory as it sees it. It
imports nothing of Tangram.
"""

import ctypes
import json
import sys
from typing import Any

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 out, .param .u32 value)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r1;
    ret;
}
"""
VALUE = 4711
THREADS = 256
_BYTES = 4 * THREADS


class CudaError(Exception):
    """A call of the driver API that failed."""


class Cuda:
    """The calls that are needed. Every one returns a CUresult; 0 is success."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def code(self, name: str, *arguments: Any) -> int:
        """What a call returns."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """A call that must succeed."""
        if code := self.code(name, *arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'').decode()} ({code})")


def fill(cuda: Cuda) -> list[int]:
    """Runs the kernel; the values that it has written, each once."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"fill")
    memory = ctypes.c_uint64()
    cuda.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(_BYTES))
    value = ctypes.c_uint32(VALUE)
    parameters = (ctypes.c_void_p * 2)(
        ctypes.cast(ctypes.byref(memory), ctypes.c_void_p), ctypes.cast(ctypes.byref(value), ctypes.c_void_p)
    )
    grid = [ctypes.c_uint(number) for number in (2, 1, 1, THREADS // 2, 1, 1, 0)]
    cuda.call("cuLaunchKernel", function, *grid, None, parameters, None)
    cuda.call("cuCtxSynchronize")
    result = (ctypes.c_uint32 * THREADS)()
    cuda.call("cuMemcpyDtoH_v2", result, memory, ctypes.c_size_t(_BYTES))
    cuda.call("cuMemFree_v2", memory)
    return sorted(set(result))


def main(sizes_mib: list[int]) -> dict[str, Any]:
    """What the program has seen."""
    cuda = Cuda()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda.call("cuInit", 0)
    cuda.call("cuDeviceGet", ctypes.byref(device), 0)
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    written = fill(cuda)
    codes = []
    for mib in sizes_mib:
        memory = ctypes.c_uint64()
        codes.append(cuda.code("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(mib * 2**20)))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    return {"written": written, "allocations": codes, "totalMiB": total.value // 2**20}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main([int(word) for word in sys.argv[1:]])) + "\n")
