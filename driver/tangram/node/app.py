"""The node plugin: everything wired, in the order of start and stop.

Start: state on disk → hardware → reconcile → kubelet plugin → publisher. A GPU driver or an API server that
is away does not stop the start: pods must be able to end without them.
Stop: the kubelet plugin first. ResourceSlices stay: a restart must leave no gap.
"""

import asyncio
import contextlib
import gc
import sys
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry

from tangram import DRIVER_NAME, __version__
from tangram.base.backoff import Backoff
from tangram.base.clock import Clock, SystemClock, within
from tangram.base.errors import TangramError
from tangram.base.logs import get_logger
from tangram.base.serving import HttpServer
from tangram.hardware.backend import Backend
from tangram.hardware.events import EventWatch
from tangram.hardware.mps.directory import MpsDirectory, mps_root
from tangram.hardware.mps.processes import read_boot_id
from tangram.hardware.workers import Workers
from tangram.kube.client import Client
from tangram.kube.events import EventRecorder
from tangram.kube.objects import ResourceClaim
from tangram.kubeletplugin.plugin import KubeletPlugin
from tangram.kubeletplugin.publisher import SlicePublisher
from tangram.model.devices import pool_name
from tangram.node.backends import choose_backend
from tangram.node.cdifile import CdiFiles, driver_edits_of
from tangram.node.discovery import Discovery
from tangram.node.drains import DIRECTORY, DrainStore, DrainWatch
from tangram.node.driver import NodeDriver
from tangram.node.gpunotes import GpuNotes
from tangram.node.healthstream import HealthStream
from tangram.node.held import Damage, HeldClaim
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory
from tangram.node.locks import Locks
from tangram.node.metrics import HELD_STATE_SET_ASIDE, NodeCollector
from tangram.node.mpswatch import MpsWatch
from tangram.node.pools import Counters, pools
from tangram.node.prepare import Preparer
from tangram.node.reconcile import Reconciler
from tangram.node.report import AFTER_ANSWER_S, Reporter
from tangram.node.settings import NodeSettings
from tangram.node.steps.mps import MpsClients
from tangram.node.transaction import Hardware

_log = get_logger("node")

_SHM = Path("/dev/shm")  # noqa: S108 - the host's, which MPS daemons and their clients share
_FIRST_LOOK_S = 5.0
_FLUSH_S = 0.2
_CLOSE_S = 0.1
_LOOK_AT_SERVER_S = 0.5
_HEALTH_AGAIN_S = 10.0
"""How often unchanged health is told at most: a message has all devices, and a kubelet forgets after 30 s."""
# Claims are worked on in threads, and every file operation gives the interpreter away: while the event loop
# is busy with other claims, each would wait the default of 5 ms to get it back.
SWITCH_INTERVAL_S = 0.0005


async def run(settings: NodeSettings) -> None:
    """`tangram node run`, until cancelled. Raises ConfigurationError, InvalidObjectError, StateError."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    backend = choose_backend(settings)
    client = await Client.connect(kubeconfig=settings.kubeconfig, user_agent=f"tangram-node/{__version__}")
    try:
        await NodePlugin(settings, client=client, backend=backend).run()
    finally:
        await client.close()


class NodePlugin:
    """One node plugin process. `run` may be called once.

    `boot_id` is for tests that reboot the node, `registry` for several plugins in one process.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        client: Client,
        backend: Backend,
        clock: Clock | None = None,
        boot_id: str | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock = clock or SystemClock()
        pool = pool_name(DRIVER_NAME, settings.node_name)
        directory = Path(settings.kubelet_dir) / "plugins" / DRIVER_NAME
        self._store = HeldStore(directory / "claims")
        self._locks = Locks(directory / "locks", clock=clock)
        self._cdi = CdiFiles(Path(settings.cdi_root))
        boot_id = boot_id or read_boot_id()
        self._notes = GpuNotes(directory / "gpus", boot_id=boot_id)
        self._workers = Workers(backend, clock=clock)
        self._discovery = Discovery(
            workers=self._workers,
            held=self._held_claims,
            owed=self._notes.instances,
            driver_edits=driver_edits_of(
                backend.name,
                driver_root=Path(settings.driver_root),
                visible_root=Path(settings.driver_root_mount or settings.driver_root),
                plugin_directory=directory,
            ),
            changed=self._changed,
            clock=clock,
            rescan_interval_s=settings.rescan_interval_s,
            policy=settings.policy,
            drained=lambda: self._drains.drained,
            mps_failing=lambda: self._mps_watch.failing,
        )
        self._drains = DrainWatch(
            DrainStore(directory / DIRECTORY), changed=self._drains_changed, clock=clock
        )
        self._xids = EventWatch(
            self._workers,
            gpus=lambda: [gpu.uuid for gpu in found.machine.gpus] if (found := self._inventory()) else (),
            on_event=self._discovery.heard,
            clock=clock,
        )
        self._events = EventRecorder(
            client,
            controller=f"{DRIVER_NAME}/node",
            instance=settings.node_name,
            clock=clock,
            delay_s=AFTER_ANSWER_S,
        )
        self._reporter = Reporter(
            client=client, events=self._events, clock=clock, node_name=settings.node_name
        )
        mps = MpsDirectory(
            mps_root(settings.kubelet_dir),
            clock=clock,
            boot_id=boot_id,
            shm_directory=None if backend.name == "simulated" else _SHM,
        )
        self._mps_watch = MpsWatch(
            directory=mps,
            held=self._held_claims,
            tell=self._reporter.mps_failed,
            changed=self._discovery.told_otherwise,
            clock=clock,
        )
        self._preparer = Preparer(
            pool=pool,
            store=self._store,
            cdi=self._cdi,
            locks=self._locks,
            hardware=Hardware(
                workers=self._workers,
                mps=MpsClients(mps),
                clock=clock,
                boot_id=boot_id,
                notes=self._notes,
                rescan=self._discovery.look,
                veto=self._discovery.veto,
                inventory=self._inventory,
            ),
            policy=settings.policy,
            set_aside=self._set_aside,
            warn=self._reporter.noteworthy,
        )
        self.reconciler = Reconciler(
            pool=pool,
            node_name=settings.node_name,
            store=self._store,
            cdi=self._cdi,
            preparer=self._preparer,
            client=client,
            clock=clock,
            confirmed=self._confirmed,
        )
        self._plugin = KubeletPlugin(
            driver_name=DRIVER_NAME,
            driver=NodeDriver(
                preparer=self._preparer,
                reporter=self._reporter,
                inventory=self._inventory,
                lives=self.reconciler.lives,
                tidy=self.reconciler.local,
                clock=clock,
            ),
            client=client,
            clock=clock,
            kubelet_directory=Path(settings.kubelet_dir),
            pod_uid=settings.pod_uid,
        )
        self._health = HealthStream(
            tell=self._plugin.set_health,
            pool=pool,
            inventory=self._inventory,
            clock=clock,
            interval_s=max(settings.rescan_interval_s, _HEALTH_AGAIN_S),
        )
        self._publisher = SlicePublisher(
            client=client, driver_name=DRIVER_NAME, node_name=settings.node_name, clock=clock
        )
        # What to publish while the server is not known: nothing where its version decides on the layout.
        self._one_slice = None if settings.allocator == "scheduler" else False
        self._counters: Counters = "none"
        self._registry = registry
        self.server = HttpServer(settings.metrics_address, waiting_for=self.waiting_for, registry=registry)

    def waiting_for(self) -> list[str]:
        """What keeps the plugin from its work; empty: ready."""
        waiting: list[str] = []
        if not self._plugin.registered:
            waiting.append("registration with the kubelet")
        if self._discovery.problem:
            waiting.append(f"the GPUs: {self._discovery.problem}")
        if not self._drains.known:
            waiting.append(f"the drains to be readable: {self._drains.problem}")
        if not self._publisher.published:
            waiting.append("its ResourceSlices to be published")
        return waiting

    async def run(self) -> None:
        """Until cancelled; then stops within `shutdown_grace_s`."""
        await asyncio.to_thread(self._store.create)
        await asyncio.to_thread(self._locks.create)
        await asyncio.to_thread(self._notes.create)
        await self._drains.look()
        await self._mps_watch.look()
        collector = NodeCollector(
            node_name=self._settings.node_name, store=self._store, inventory=self._inventory
        )
        self._registry.register(collector)
        try:
            async with self.server, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._events.run())
                tasks.create_task(self._discovery.run())
                tasks.create_task(self._xids.run())
                tasks.create_task(self._drains.run())
                # A driver that hangs takes its time; pods must be able to end meanwhile.
                with contextlib.suppress(TimeoutError):
                    await within(self._discovery.looked.wait(), seconds=_FIRST_LOOK_S, clock=self._clock)
                await self.reconciler.local(at_start=True)
                try:
                    await self._plugin.start()
                    for loop in (
                        self._health,
                        self._publisher,
                        self._reporter,
                        self.reconciler,
                        self._mps_watch,
                    ):
                        tasks.create_task(loop.run())
                    if self._settings.allocator == "scheduler":
                        tasks.create_task(self._learn_layout())
                    # What is alive now stays alive: the collector need not look at it again.
                    gc.collect()
                    gc.freeze()
                    await asyncio.Event().wait()
                finally:
                    await self._plugin.stop(grace_s=self._settings.shutdown_grace_s)
                    await self._events.flush(timeout_s=_FLUSH_S)
        finally:
            self._registry.unregister(collector)
            # A call that hangs in the driver is left behind: its thread does not keep the process.
            with contextlib.suppress(TimeoutError):
                await within(self._workers.close(), seconds=_CLOSE_S, clock=self._clock)

    async def _learn_layout(self) -> None:
        """Asks the server for its version: a kube-scheduler before 1.36 does not walk slices in order.

        The one thing read from a version: an order of walking cannot be discovered by reading back what was
        written. Until it is known nothing is published; the server is needed for that anyway.
        """
        backoff = Backoff()
        while self._one_slice is None:
            try:
                self._one_slice = await self._client.server_version() < (1, 36)
            except TangramError as error:
                _log.warning("server_version_unknown", error=str(error))
                await self._clock.sleep(backoff.next_s())
        if not self._one_slice and self._settings.policy.overlaps:
            await self._learn_counters()
        self._publish_again()

    async def _learn_counters(self) -> None:
        """Publishes counter sets that nothing consumes, and has devices consume them once the server is seen
        to keep them."""
        while (kept := await self._publisher.keeps("sharedCounters")) is None:
            if self._counters == "none":
                self._counters = "probed"
                self._publish_again()
            await self._clock.sleep(_LOOK_AT_SERVER_S)
        self._counters = "consumed" if kept else "none"
        _log.info("counters_learnt", kept=kept)

    def _publish_again(self) -> None:
        if (inventory := self._inventory()) is not None:
            self._publish(inventory)

    def _inventory(self) -> Inventory | None:
        return self._discovery.inventory

    def _changed(self, inventory: Inventory) -> None:
        self._reporter.gpus_not_answering(inventory.machine.failures)
        self._reporter.gpus_warn(inventory.warnings)
        self._health.tell()
        self._publish(inventory)
        self.reconciler.ask()

    def _drains_changed(self) -> None:
        self._discovery.told_otherwise()
        self._publish_again()

    def _publish(self, inventory: Inventory) -> None:
        if self._one_slice is None or not self._drains.known:
            return
        self._publisher.publish(
            pools(
                inventory,
                node_name=self._settings.node_name,
                allocator=self._settings.allocator,
                one_slice=self._one_slice,
                counters=self._counters,
            )
        )

    def _held_claims(self) -> tuple[HeldClaim, ...]:
        return tuple(self._store.load().claims.values())

    def _confirmed(self, claim: ResourceClaim, held: HeldClaim, gone: list[str]) -> None:
        """Heals a status that was lost with the process before, or that the health of a GPU has changed."""
        inventory = self._inventory()
        if inventory is not None and all(inventory.gpu(uuid) for uuid in held.gpus):
            self._reporter.prepared(claim, held, inventory, new=False, gone=gone)

    def _set_aside(self, damage: Damage, path: str) -> None:
        HELD_STATE_SET_ASIDE.inc()
        _log.error("held_state_set_aside", uid=damage.uid, cause=damage.cause, path=path)
        owner = self._cdi.owner(damage.uid)
        self._reporter.state_set_aside(uid=damage.uid, cause=damage.cause, path=path, owner=owner)
