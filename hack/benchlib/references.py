"""Processes to compare ours with. Run by path, so that nothing is imported but what is compared.

references.py serve SOCKET BYTES    a grpc.aio server whose every answer has that size; prints `ready`
references.py import MODULE...      imports them one after the other, prints JSON per module, and stays
"""

import sys


def serve(path: str, size_bytes: int) -> None:
    """Until killed."""
    import asyncio  # noqa: PLC0415

    import grpc.aio  # noqa: PLC0415

    answer = bytes(size_bytes)

    async def echo(_request: bytes, _context: object) -> bytes:
        return answer

    class Every(grpc.GenericRpcHandler):
        def service(self, _details: object) -> "grpc.RpcMethodHandler[bytes, bytes]":
            return grpc.unary_unary_rpc_method_handler(echo)

    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Every(),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        print("ready", flush=True)
        await server.wait_for_termination()

    asyncio.run(run())


def import_each(names: list[str]) -> None:
    """Milliseconds and growth of the resident set of each import, as one line of JSON; until killed."""
    import importlib  # noqa: PLC0415
    import json  # noqa: PLC0415
    import resource  # noqa: PLC0415
    import time  # noqa: PLC0415

    page_bytes = resource.getpagesize()

    def resident_bytes() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * page_bytes

    found = {"python": {"ms": 0.0, "bytes": resident_bytes()}}
    for name in names:
        before_bytes, started_s = resident_bytes(), time.perf_counter()
        importlib.import_module(name)
        elapsed_ms = 1000 * (time.perf_counter() - started_s)
        found[name] = {"ms": elapsed_ms, "bytes": resident_bytes() - before_bytes}
    print(json.dumps(found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        import_each(sys.argv[2:])
