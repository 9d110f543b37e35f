"""The picture of the GPUs."""

import dataclasses

from tangram.playground.picture import draw
from tangram.playground.recorder import GpuSeen


def gpu(index: int, links: str) -> GpuSeen:
    return GpuSeen(
        node="n",
        devices=frozenset({f"gpu-{index}", f"gpu-{index}-mig-1g10gb-0"}),
        uuid=f"GPU-{index}",
        index=index,
        ordinal=index,
        product_name="X",
        memory_bytes=16 * 2**30,
        links=links,
    )


def test_boxes_links_and_holders() -> None:
    gpus = [gpu(0, "1:2,2:1"), gpu(1, "0:2,2:3"), gpu(2, "0:1,1:3")]
    lines = draw(gpus, {("n", "gpu-1"): ["b", "a"]}, colour=False)
    assert lines == [
        "n: 3 × X, 16 GiB; 2 free",
        "  ┌─────┐ ┌─────┐ ┌─────┐",
        "  │  ·  │ │ B+A │ │  ·  │",
        "  └──0──┘ └──1──┘ └──2──┘",
        "     ╚═══════╝",
        "             ╚═══3═══╝",
        "     ╰───────────────╯",
        "  A a   B b",
    ]


def test_more_sharers_than_a_box_has_room_for() -> None:
    held = {("n", "gpu-0"): ["a", "b"], ("n", "gpu-0-mig-1g10gb-0"): ["c", "a", "d"]}
    assert draw([gpu(0, "none")], held, colour=False)[2] == "  │ A…D │"


def test_a_switch_and_no_links() -> None:
    assert (
        "NVSwitch, 12 NVLinks to each GPU" in draw([gpu(i, "sw:12") for i in range(8)], {}, colour=False)[-1]
    )
    assert draw([gpu(0, "none")], {}, colour=False)[-1] == "  (no NVLink)"


def test_equal_holders_have_equal_colours_and_so_has_their_link() -> None:
    held = {("n", "gpu-0"): ["a"], ("n", "gpu-1"): ["a"]}
    lines = draw([gpu(0, "1:2"), gpu(1, "0:2")], held, colour=True)
    assert lines[4] == "     \x1b[32m╚═══════╝\x1b[0m"
    assert all("\x1b" not in line for line in draw([gpu(0, "1:2"), gpu(1, "0:2")], held, colour=False))


def test_unhealthy_gpus_are_marked_held_or_free() -> None:
    gpus = [dataclasses.replace(gpu(index, "none"), healthy=index == 2) for index in range(3)]
    lines = draw(gpus, {("n", "gpu-1"): ["a"]}, colour=False)
    assert lines[2] == "  │  ✗  │ │ A✗  │ │  ·  │"
    assert lines[-1] == "  ✗ unhealthy"


def test_a_legend_is_not_wider_than_a_terminal() -> None:
    gpus = [gpu(index, "none") for index in range(8)]
    held = {("n", f"gpu-{index}"): [f"a-pod-with-a-long-name-{index}"] for index in range(8)}
    lines = draw(gpus, held, colour=False)
    assert max(map(len, lines)) <= 100
    assert sum("a-pod-with-a-long-name" in line for line in lines) == 3


def test_products_are_counted_each() -> None:
    gpus = [gpu(0, "none"), dataclasses.replace(gpu(1, "none"), product_name="Y", memory_bytes=0)]
    assert draw(gpus, {}, colour=False)[0] == "n: 1 × X, 16 GiB, 1 × Y; 2 free"


def test_more_holders_than_letters() -> None:
    gpus = [gpu(index, "none") for index in range(30)]
    held = {("n", f"gpu-{index}"): [f"p{index:02}"] for index in range(30)}
    assert "AD p29" in draw(gpus, held, colour=False)[-1]
