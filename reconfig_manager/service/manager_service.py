"""A running manager, put together.

    service = ManagerService(settings)
    await service.start()
    await service.run()            # until it fails, or is stopped

It may run beside others: one leads, the others follow and answer what they can from the store.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from dynatops.kit.addresses import join_address, split_address
from dynatops.kit.background import Supervisor, until_one_ends
from dynatops.kit.security.peer_credentials import (
    CredentialsError,
    LinkCredentials,
    ServerCertificates,
    read_link_credentials,
)
from dynatops.kit.security.tls import TlsFileError
from dynatops.kit.security.tokens_file import TokensError
from reconfig_manager.manager import Manager
from reconfig_manager.model.refusals import StoreAway
from reconfig_manager.ports import ManagerFacts
from reconfig_manager.rest.app import create_app
from reconfig_manager.rest.broadcast import Broadcast
from reconfig_manager.rest.serving.server import RestServer, ServeError
from reconfig_manager.service.agents import AgentServer
from reconfig_manager.service.demand_advice import demand_reader
from reconfig_manager.service.driving import ManagerDriver
from reconfig_manager.service.facade import ManagerFacade
from reconfig_manager.service.observing.job_health import JobHealth
from reconfig_manager.service.process_settings import ManagerProcessSettings, default_manager_id
from reconfig_manager.service.rate_advice import rate_reader
from reconfig_manager.solvers.warm_up import warm_up_model
from reconfig_manager.store.leadership import Leadership, LeadershipHost
from reconfig_manager.store.opening import (
    OpenedStore,
    StoreContext,
    StoreOpenError,
    open_store,
)
from reconfig_manager.store.redis_store import connect

log = logging.getLogger(__name__)


class ManagerStartError(Exception):
    """The manager cannot start; the message says what to do about it."""


_START_PROBLEMS = (
    CredentialsError,
    ServeError,
    StoreOpenError,
    TokensError,
)


class ManagerService:
    def __init__(self, settings: ManagerProcessSettings) -> None:
        self.settings = settings
        # Known once it listens.
        self.manager_id = settings.manager_id
        self.address = ""
        self.http_url = ""
        self.driver: ManagerDriver
        self.opened: OpenedStore | None = None
        self._rest: RestServer | None = None
        self._agents: AgentServer | None = None
        self._broadcast: Broadcast
        self._leading: asyncio.Task[object] | None = None
        self.supervisor = Supervisor()
        self._ended = asyncio.Event()
        self._started = False

    # ---- starting -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and compete for the lease. Raises ManagerStartError."""
        try:
            credentials = read_link_credentials(self.settings.security)
            context = StoreContext(
                self.settings.store,
                time.time,
                plans_read=self.settings.manager.plans_kept,
                supervisor=self.supervisor,
            )
            self.opened = await open_store(self.settings.store_url, context)
            self._make_driver(self.opened)
            await self._listen(self.opened, credentials)
        except _START_PROBLEMS as error:
            await self.kill()
            raise ManagerStartError(str(error)) from error
        except BaseException:
            await self.kill()
            raise
        # Otherwise the first proposal would compile, and the lease run out meanwhile.
        await asyncio.to_thread(warm_up_model)
        start = self.supervisor.start
        self._leading = start("leading", self.driver.leadership.run(), may_end=True)
        start("asking about durability", _look_at_durability(self.opened), may_end=True)
        if self.driver.rates is not None:
            start("reading rates", self.driver.rates.run())
        if self.driver.demand is not None:
            start("reading demand", self.driver.demand.run())
        if self.driver.job_health is not None:
            start("looking at jobs", self.driver.job_health.run())
        log.info("manager %s listens at %s and %s", self.manager_id, self.address, self.http_url)

    def _make_driver(self, opened: OpenedStore) -> None:
        settings = self.settings
        rest = settings.rest
        self._broadcast = Broadcast(
            # Numbers of events are of this life of the process.
            secrets.token_hex(4),
            watchers_max=rest.watchers_max,
            caller_watchers_max=rest.caller_watchers_max,
            watcher_events_max=rest.watcher_events_max,
            kept=rest.events_kept,
        )
        self.driver = ManagerDriver(settings, opened.store, self._broadcast, self.supervisor)
        self._follow_advice(opened.redis_url)
        self._started = True

    def _follow_advice(self, store_url: str) -> None:
        """Where analytics write it: at the store's server, if it is one for that, or at another."""
        driver, advice, store = self.driver, self.settings.advice, self.settings.store
        url = advice.redis_url or store_url
        if not url:
            return
        if advice.redis_url:
            store = store.model_copy(update={"password": advice.password})
        driver.rates = rate_reader(connect(store, url), advice, driver.advise)
        driver.demand = demand_reader(connect(store, url), advice, driver.advise_demand)
        driver.job_health = JobHealth(connect(store, url), advice.period_s)

    async def _listen(self, opened: OpenedStore, credentials: LinkCredentials) -> None:
        settings, driver = self.settings, self.driver
        driver.agents = self._agents = AgentServer(settings.service, credentials, driver)
        port = driver.agents.bind(settings.listen, _certificates(credentials, settings))
        if port is None:
            raise ManagerStartError(
                f"cannot listen on {settings.listen}: the port is in use, or the address is not "
                "this host's; choose another"
            )
        host, _ = split_address(settings.listen)
        self.address = settings.advertise or join_address(host, port)
        driver.agents.address = self.address
        self.manager_id = settings.manager_id or default_manager_id(port)
        driver.manager = Manager(
            settings.manager, self.manager_id, advice_ttl_s=settings.advice.ttl_s
        )
        facade = ManagerFacade(driver, opened.store, self._broadcast, settings.rest)
        self._rest = RestServer(create_app(facade, settings.rest), settings.rest)
        # Until then it is asked about leadership by nobody.
        facts = ManagerFacts(manager_id=self.manager_id, agents=self.address)
        lead_host = LeadershipHost(driver.on_lead, driver.on_depose)
        driver.leadership = Leadership(opened.store, settings.leadership, facts, lead_host)
        await self._rest.start(self.supervisor)
        self.http_url = self._rest.url
        driver.leadership.facts = facts.model_copy(update={"http": self.http_url})
        driver.start()
        await driver.agents.start()

    @property
    def leads(self) -> bool:
        return self._started and self.driver.manager.leads

    def reload(self) -> None:
        """Show renewed certificates, read tokens; what cannot be used leaves all as it was."""
        try:
            if self._rest is not None:
                self._rest.reload()
            self.driver.agents.reload_certificates()
        except (TlsFileError, TokensError) as error:
            log.error("not everything was reloaded: %s", error)
            return
        log.warning("reloaded certificates and tokens")

    async def run(self) -> None:
        """Until it is stopped. Raises BackgroundError if it fails; it should be stopped then."""
        await until_one_ends(self._ended.wait(), self.supervisor.failure())
        if self.supervisor.failed is not None:
            raise self.supervisor.failed

    # ---- its end --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Give the lease back, and end."""
        if self._leading is not None:
            self.driver.leadership.stop()
            # Each of its questions to the store is bounded in time.
            await asyncio.wait((self._leading,), timeout=10 * self.settings.store.timeout_s)
        await self.kill()

    async def kill(self) -> None:
        """End; a lease runs out by itself."""
        self._leading = None
        if self._started:
            self._started = False
            self._broadcast.close()
            if self._rest is not None:
                await self._rest.stop()
                self._rest = None
            if self._agents is not None:
                await self._agents.stop()
                self._agents = None
            await self.driver.stop()
            await self.supervisor.stop()
        if self.opened is not None:
            await self.opened.close()
            self.opened = None
        self._ended.set()


async def _look_at_durability(opened: OpenedStore) -> None:
    try:
        problem = await opened.durability_problem()
    except StoreAway as error:
        problem = f"it could not be asked ({error})"
    if problem:
        log.warning("the store may forget what it has confirmed: %s", problem)


def _certificates(
    credentials: LinkCredentials, settings: ManagerProcessSettings
) -> ServerCertificates | None:
    if credentials.tls is None:
        return None
    required = settings.security.require_client_certificates
    return ServerCertificates(credentials.tls, require_client_certificates=required)
