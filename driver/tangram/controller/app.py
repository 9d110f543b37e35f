"""The controller process: stands for election and, while it leads, watches and allocates."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tangram import DRIVER_NAME, __version__
from tangram.allocation import Settings
from tangram.base.backoff import Backoff
from tangram.base.clock import Clock, SystemClock
from tangram.base.errors import ConfigurationError, KubeError, LeadershipLostError, NotFoundError
from tangram.base.logs import get_logger
from tangram.base.serving import HttpServer
from tangram.controller import metrics
from tangram.controller.claims import decode_class
from tangram.controller.exclusions import Exclusions
from tangram.controller.freeing import give_back
from tangram.controller.inventory import decode_slice
from tangram.controller.loop import AllocationLoop
from tangram.controller.nodefit import decode_node
from tangram.controller.pods import decode_pod
from tangram.controller.reporting import Reporter
from tangram.controller.settings import ControllerSettings
from tangram.controller.state import State
from tangram.controller.unused import UnusedClaims
from tangram.kube.client import Client, decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.election import LeaderElector
from tangram.kube.events import EventRecorder
from tangram.kube.objects import ResourceClaim
from tangram.kube.reflector import Change, Reflector
from tangram.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tangram.kube.workqueue import WorkQueue

log = get_logger("controller")

T = TypeVar("T")

_FLUSH_TIMEOUT_S = 0.5


async def run(settings: ControllerSettings, *, clock: Clock | None = None) -> None:
    """Runs the controller until cancelled."""
    clock = clock or SystemClock()
    client = await Client.connect(
        kubeconfig=settings.kubeconfig, user_agent=f"tangram-controller/{__version__}"
    )
    controller = Controller(client, settings, clock)
    try:
        async with HttpServer(settings.metrics_address, waiting_for=controller.waiting_for):
            await controller.run()
    finally:
        await client.close()


class Controller:
    """One replica. Standby replicas hold no state: a new leader rebuilds all of it from the API server."""

    def __init__(self, client: Client, settings: ControllerSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        # Two replicas that share a host's network share its name: the name alone would make two leaders.
        self._identity = settings.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._waiting_for = ["the API server"]

    def waiting_for(self) -> list[str]:
        """What keeps the replica from its work; a standby waits for nothing."""
        return self._waiting_for

    async def run(self) -> None:
        """Until cancelled. A lost leadership is no end: the replica stands for election again."""
        await self._reach_server()
        self._waiting_for = []
        elector = LeaderElector(
            self._client,
            namespace=self._settings.namespace,
            name=self._settings.lease_name,
            identity=self._identity,
            clock=self._clock,
        )
        while True:
            try:
                await elector.run(self._lead)
            except LeadershipLostError as error:
                log.warning("leadership_lost", error=str(error))

    async def _reach_server(self) -> None:
        """Returns once the API server serves DRA. Raises ConfigurationError if it does not know the API."""
        backoff = Backoff()
        while True:
            try:
                await self._client.list_page(DEVICE_CLASSES, limit=1)
            except NotFoundError as error:
                raise ConfigurationError(
                    f"the API server does not serve {DEVICE_CLASSES.api_version}",
                    next_step="use Kubernetes 1.34 or later with DynamicResourceAllocation enabled",
                ) from error
            except KubeError as error:
                log.warning("api_server_not_ready", error=str(error))
                await self._clock.sleep(backoff.next_s())
            else:
                return

    async def _lead(self) -> None:
        """The active controller: everything is read anew, by quorum lists, before the first decision."""
        metrics.LEADER.set(1)
        log.info("leading", identity=self._identity)
        events = EventRecorder(
            self._client,
            controller=f"{DRIVER_NAME}/controller",
            instance=self._identity,
            clock=self._clock,
        )
        reporter = Reporter(events)

        def requeue(pod: ObjectKey) -> None:
            queue.add(pod)

        state = State(
            clock=self._clock,
            exclusions=Exclusions(
                initial_s=self._settings.exclusion_initial_s, maximum_s=self._settings.exclusion_maximum_s
            ),
            requeue=requeue,
            report=reporter.in_two_claims,
        )
        queue: WorkQueue[ObjectKey] = WorkQueue(clock=self._clock, order=state.order)
        reflectors = self._reflectors(state)
        loop = AllocationLoop(
            client=self._client,
            state=state,
            queue=queue,
            reporter=reporter,
            clock=self._clock,
            settings=Settings(),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in reflectors:
                    tasks.create_task(reflector.run())
                tasks.create_task(events.run())
                self._waiting_for = ["the first lists of slices, classes, nodes, claims and pods"]
                for reflector in reflectors:
                    await reflector.synced.wait()
                self._waiting_for = []
                log.info("synced", claims=len(state.claims), nodes=len(state.inventory.nodes))
                tasks.create_task(
                    give_back(self._client, state, reporter, self._unused_claims(), clock=self._clock)
                )
                await loop.run()
        finally:
            self._waiting_for = []
            metrics.LEADER.set(0)
            await events.flush(timeout_s=_FLUSH_TIMEOUT_S)

    def _unused_claims(self) -> UnusedClaims:
        return UnusedClaims(
            idle_ttl_s=self._settings.idle_claim_ttl_s, unbound_timeout_s=self._settings.unbound_timeout_s
        )

    def _reflectors(self, state: State) -> tuple[Reflector[Any], ...]:
        own_slices = f"spec.driver={DRIVER_NAME}"
        return (
            self._reflect(RESOURCE_SLICES, decode_slice, state.on_slice, field_selector=own_slices),
            self._reflect(DEVICE_CLASSES, decode_class, state.on_class),
            self._reflect(NODES, decode_node, state.on_node),
            self._reflect(RESOURCE_CLAIMS, _decode_claim, state.on_claim),
            self._reflect(PODS, decode_pod, state.on_pod),
        )

    def _reflect(
        self,
        resource: Resource,
        decoder: Callable[[msgspec.Raw], T],
        on_change: Callable[[Change[T]], None],
        *,
        field_selector: str = "",
    ) -> Reflector[T]:
        return Reflector(
            self._client,
            resource,
            decoder,
            clock=self._clock,
            on_change=on_change,
            field_selector=field_selector,
        )


def _decode_claim(raw: msgspec.Raw) -> ResourceClaim:
    return decode(raw, ResourceClaim)
