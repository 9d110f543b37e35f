import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from tests.unit.kubeletplugin.widgets import Claims, WidgetDriver, reference

from tangram.base.errors import DeviceHeldError, UnreachableError
from tangram.kubeletplugin.claims import MAXIMUM_CLAIMS_PER_CALL, ClaimService
from tangram.kubeletplugin.driver import ClaimReference
from tangram.testing.clock import FakeClock


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def driver() -> WidgetDriver:
    return WidgetDriver()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def service(claims: Claims, driver: WidgetDriver, clock: FakeClock) -> ClaimService:
    return ClaimService(driver_name="widgets.example.com", driver=driver, claims=claims, clock=clock)


async def test_one_read_and_one_answer_per_claim(
    service: ClaimService, claims: Claims, driver: WidgetDriver
) -> None:
    references = [reference(uid) for uid in ("a", "b", "c")]
    for each in references:
        claims.add(each)
    answers = await service.prepare([*references, references[0]])
    assert sorted(answers) == ["a", "b", "c"]
    assert answers["b"].error == ""
    assert [device.device_name for device in answers["b"].devices] == ["widget-b"]
    assert sorted(claims.reads) == ["claim-a", "claim-b", "claim-c"]
    assert sorted(driver.finished) == ["prepare a", "prepare b", "prepare c"]


async def test_an_error_costs_one_claim(service: ClaimService, claims: Claims, driver: WidgetDriver) -> None:
    for uid in ("good", "held", "broken", "unreachable", "other", "free"):
        claims.add(reference(uid))
    claims.objects["claim-unreachable"] = UnreachableError("connection refused")
    claims.add(reference("other"), metadata={"namespace": "default", "name": "claim-other", "uid": "another"})
    claims.add(reference("free"), status={"allocation": None})
    driver.failures["held"] = DeviceHeldError(
        "widget-1 is held by claim x", device="widget-1", holder="x", next_step="wait until x is unprepared"
    )
    driver.failures["broken"] = ZeroDivisionError("secret of the driver")
    uids = ["good", "held", "broken", "unreachable", "other", "free", "gone"]
    with capture_logs() as logs:
        answers = await service.prepare([reference(uid) for uid in uids])
    assert sorted(answers) == sorted(uids)
    assert answers["good"].error == ""
    errors = {uid: answer.error for uid, answer in answers.items() if answer.error}
    prefix = "prepare of claim default/claim-"
    assert errors == {
        "held": f"{prefix}held: widget-1 is held by claim x; wait until x is unprepared",
        "broken": f"{prefix}broken: internal error of driver widgets.example.com (ZeroDivisionError);"
        " see its log",
        "unreachable": f"{prefix}unreachable: the claim cannot be read: connection refused;"
        " the kubelet tries again; check the API server if this goes on",
        "gone": f"{prefix}gone: the claim cannot be read: claim-gone not found;"
        " the kubelet tries again; check the API server if this goes on",
        "other": f"{prefix}other: the claim has uid 'another', the kubelet asks for 'other': it was deleted"
        " and created again; delete the pod, so that it is created for the new claim",
        "free": f"{prefix}free: the claim is not allocated (any more);"
        " the kubelet tries again; if it stays so, see the claim's events",
    }
    assert all(answers[uid].devices == () for uid in errors)
    (traced,) = [log for log in logs if log["event"] == "claim_failed_internally"]
    assert traced["exc_info"]


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{", b'{"metadata": null}', b'{"metadata": {"uid": 7}}', b"\xff", b"[" * 100_000],
)
async def test_a_malformed_claim_is_an_error_that_names_it(
    service: ClaimService, claims: Claims, content: bytes
) -> None:
    claims.objects["claim-a"] = content
    answers = await service.prepare([reference("a")])
    assert answers["a"].error.startswith("prepare of claim default/claim-a: ")
    assert "internal error" not in answers["a"].error


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (ClaimReference(namespace="default", name="c", uid=""), "uid"),
        (ClaimReference(namespace="default", name="c", uid="../../etc/passwd"), "uid"),
        (ClaimReference(namespace="default", name="c", uid=".."), "uid"),
        (ClaimReference(namespace="default", name="c", uid="a/b"), "uid"),
        (ClaimReference(namespace="default", name="c", uid="a\n"), "uid"),
        (ClaimReference(namespace="default", name="c", uid="a\0"), "uid"),
        (ClaimReference(namespace="default", name="c", uid="u" * 1_000_000), "uid"),
        (ClaimReference(namespace="", name="c", uid="a"), "namespace"),
        (ClaimReference(namespace="kube-system/../x", name="c", uid="a"), "namespace"),
        (ClaimReference(namespace="default", name="", uid="a"), "name"),
        (ClaimReference(namespace="default", name="../../pods/x", uid="a"), "name"),
        (ClaimReference(namespace="default", name="c?dryRun=All", uid="a"), "name"),
    ],
)
async def test_what_a_kubelet_never_sends(
    service: ClaimService, claims: Claims, driver: WidgetDriver, bad: ClaimReference, field: str
) -> None:
    claims.add(reference("good"))
    for call in (service.prepare, service.unprepare):
        answers = await call([bad, reference("good")])
        assert sorted(answers) == sorted([bad.uid, "good"])
        assert answers[bad.uid].error.startswith(f"claim: {field}: ")
        assert len(answers[bad.uid].error) < 300
        assert answers["good"].error == ""
    assert driver.finished == ["prepare good", "unprepare good"]


async def test_one_uid_for_two_claims(service: ClaimService, claims: Claims, driver: WidgetDriver) -> None:
    claims.add(reference("a", "one"))
    answers = await service.prepare([reference("a", "one"), reference("a", "two"), reference("a", "one")])
    assert "given for both claim default/one and claim default/two" in answers["a"].error
    assert driver.started == []


async def test_a_huge_call(service: ClaimService, claims: Claims) -> None:
    references = [reference(f"u{number}") for number in range(MAXIMUM_CLAIMS_PER_CALL + 3)]
    for each in references:
        claims.add(each)
    answers = await service.prepare(references)
    assert len(answers) == len(references)
    refused = [uid for uid, answer in answers.items() if answer.error]
    assert sorted(refused) == [f"u{number}" for number in range(512, 515)]
    assert "more than 512 claims in one call; use fewer claims in one pod" in answers["u514"].error


async def test_request_names_are_base_names_and_shares_are_echoed(
    service: ClaimService, claims: Claims, driver: WidgetDriver
) -> None:
    claims.add(reference("a"))
    driver.request_names = ("gpu/a100", "gpu/h100", "nic")
    driver.share_id = "5f0a"
    (device,) = (await service.prepare([reference("a")]))["a"].devices
    assert device.request_names == ("gpu", "nic")
    assert device.share_id == "5f0a"


async def test_claims_of_a_call_are_prepared_at_the_same_time(
    service: ClaimService, claims: Claims, driver: WidgetDriver
) -> None:
    gate = asyncio.Event()
    for uid in ("a", "b"):
        claims.add(reference(uid))
        driver.gates[uid] = gate
    call = asyncio.create_task(service.prepare([reference("a"), reference("b")]))
    await driver.until(started=2)
    gate.set()
    assert sorted(await call) == ["a", "b"]


async def test_calls_for_one_claim_take_turns(
    service: ClaimService, claims: Claims, driver: WidgetDriver
) -> None:
    claims.add(reference("a"))
    driver.gates["a"] = asyncio.Event()
    first = asyncio.create_task(service.prepare([reference("a")]))
    await driver.until(started=1)
    second = asyncio.create_task(service.prepare([reference("a")]))
    last = asyncio.create_task(service.unprepare([reference("a")]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert driver.started == ["prepare a"]
    driver.gates["a"].set()
    assert (await first)["a"].error == (await second)["a"].error == (await last)["a"].error == ""
    assert driver.started == driver.finished, "never two at once"
    assert sorted(driver.finished) == ["prepare a", "prepare a", "unprepare a"]


async def test_a_call_the_kubelet_gave_up_on_is_finished(
    service: ClaimService, claims: Claims, driver: WidgetDriver
) -> None:
    claims.add(reference("a"))
    driver.gates["a"] = asyncio.Event()
    first = asyncio.create_task(service.prepare([reference("a")]))
    await driver.until(started=1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    waiting = asyncio.create_task(service.prepare([reference("a")]))
    given_up = asyncio.create_task(service.prepare([reference("a")]))
    for _ in range(10):
        await asyncio.sleep(0)
    given_up.cancel()
    driver.gates["a"].set()
    assert (await waiting)["a"].error == ""
    # The one whose call went away before its turn never ran.
    assert driver.finished == ["prepare a", "prepare a"]
    assert driver.started == driver.finished


async def test_drain_waits_then_cancels(service: ClaimService, claims: Claims, driver: WidgetDriver) -> None:
    await service.drain(grace_s=0)
    for uid in ("a", "b"):
        claims.add(reference(uid))
        driver.gates[uid] = asyncio.Event()
    call = asyncio.create_task(service.prepare([reference("a"), reference("b")]))
    await driver.until(started=2)
    draining = asyncio.create_task(service.drain(grace_s=60))
    driver.gates["a"].set()
    await driver.until(finished=1)
    assert not draining.done()
    draining.cancel()
    await service.drain(grace_s=0)
    answers = await call
    assert answers["a"].error == ""
    assert answers["b"].error == ("prepare of claim default/claim-b was interrupted: the plugin is stopping")


async def test_a_driver_that_cancels_itself_costs_one_claim(
    service: ClaimService, claims: Claims, driver: WidgetDriver
) -> None:
    claims.add(reference("a"))
    claims.add(reference("b"))
    driver.failures["a"] = asyncio.CancelledError()
    answers = await service.prepare([reference("a"), reference("b")])
    assert "interrupted" in answers["a"].error
    assert answers["b"].error == ""


def duration_count(operation: str, outcome: str) -> float:
    labels = {"operation": operation, "outcome": outcome}
    return REGISTRY.get_sample_value("tangram_kubelet_claim_duration_seconds_count", labels) or 0


async def test_metrics(service: ClaimService, claims: Claims, driver: WidgetDriver, clock: FakeClock) -> None:
    before = {outcome: duration_count("prepare", outcome) for outcome in ("success", "error", "abandoned")}
    labels = {"operation": "prepare", "outcome": "success"}
    sum_before = REGISTRY.get_sample_value("tangram_kubelet_claim_duration_seconds_sum", labels) or 0
    claims.add(reference("a"))
    driver.gates["a"] = asyncio.Event()
    first = asyncio.create_task(service.prepare([reference("a"), reference("gone")]))
    await driver.until(started=1)
    second = asyncio.create_task(service.prepare([reference("a")]))
    third = asyncio.create_task(service.prepare([reference("a")]))
    for _ in range(10):
        await asyncio.sleep(0)
    in_flight = REGISTRY.get_sample_value("tangram_kubelet_claims_in_flight", {"operation": "prepare"})
    assert in_flight == 3, "those that wait for their turn count"
    third.cancel()
    await clock.advance(2)
    driver.gates["a"].set()
    await asyncio.gather(first, second)
    after = {outcome: duration_count("prepare", outcome) for outcome in before}
    assert {outcome: after[outcome] - before[outcome] for outcome in before} == {
        "success": 2,
        "error": 1,
        "abandoned": 1,
    }
    sum_after = REGISTRY.get_sample_value("tangram_kubelet_claim_duration_seconds_sum", labels) or 0
    assert sum_after - sum_before == 4, "waiting is part of it"
    assert REGISTRY.get_sample_value("tangram_kubelet_claims_in_flight", {"operation": "prepare"}) == 0


texts = st.text(max_size=8) | st.sampled_from(["a", "b", "default"])


@given(
    st.lists(st.builds(ClaimReference, namespace=texts, name=texts, uid=texts), max_size=12),
    st.sets(st.text(max_size=3)),
)
def test_any_call_gets_exactly_one_answer_per_uid(
    references: list[ClaimReference], failing: set[str]
) -> None:
    async def call() -> None:
        claims, driver = Claims(), WidgetDriver()
        for each in references:
            claims.add(each)
        driver.failures = {uid: RuntimeError() for uid in failing}
        service = ClaimService(driver_name="w", driver=driver, claims=claims, clock=FakeClock())
        for operation in (service.prepare, service.unprepare):
            answers = await operation(references)
            assert answers.keys() == {each.uid for each in references}
            assert all(
                answer.error or operation == service.unprepare or answer.devices
                for answer in answers.values()
            )

    asyncio.run(call())
