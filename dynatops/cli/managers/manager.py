"""`dynatops manager`: run one reconfiguration manager."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
from typing import Any

from dynatops.cli.assignments import explain_settings
from dynatops.cli.common import Commands, add_command, add_logging, run_async
from dynatops.cli.errors import CommandError, UsageError
from dynatops.kit.background import EXIT_CODE, end_within
from dynatops.kit.observing.logs import configure
from dynatops.kit.redis_access import exposed_password
from dynatops.kit.serving.file_watch import watched
from reconfig_manager.store.opening import describe_stores

_FAILED_END_S = 20.0
REDIS_VARIABLE = "DYNATOPS_REDIS"

log = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "manager",
        run,
        summary="run one reconfiguration manager, until it is told to stop",
        description="Run one reconfiguration manager: brokers attend to it (`dynatops broker "
        "--manager`), people ask it over HTTP. Several may share a Redis: one leads, the others "
        "follow, and take over when it is gone. SIGTERM or Ctrl-C makes it give the lead away; "
        "SIGHUP makes it read its tokens and certificates again.",
        epilog="With --json the first line printed has its addresses, once it listens. "
        f"Exit code {EXIT_CODE}: something in it has failed that it cannot do without, and its log "
        "says what; its supervisor should start it again.",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address to listen on for brokers (default: 127.0.0.1:7470; port 0 takes any)",
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="address that brokers reach this manager at"
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="address to serve HTTP at (default: 127.0.0.1:7480; port 0 takes any)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--redis",
        metavar="URL",
        help="Redis or Valkey server that managers share: redis://, rediss:// or unix:// "
        f"(default: ${REDIS_VARIABLE})",
    )
    where.add_argument(
        "--store", metavar="URL", help=f"where the state is kept: {describe_stores()}"
    )
    where.add_argument(
        "--data-dir", metavar="DIR", help="keep the state there, by a server of this manager's own"
    )
    parser.add_argument(
        "--manager-id",
        metavar="NAME",
        help="name of this manager, unlike any other's (default: host name and port)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond loopback although not everyone is authenticated",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other setting, such as leadership.ttl_s=6; see `dynatops settings --manager`",
    )
    add_logging(parser)


def settings_from(arguments: argparse.Namespace) -> Any:
    """The manager's settings; UsageError names what is wrong with them."""
    from pydantic import ValidationError

    from reconfig_manager.service.process_settings import ManagerProcessSettings, describe_settings

    values = nested(arguments.set)
    for name in ("listen", "advertise", "manager_id", "data_dir"):
        if getattr(arguments, name):
            values[name] = getattr(arguments, name)
    rest, store = values.setdefault("rest", {}), values.setdefault("store", {})
    if arguments.http:
        rest["listen"] = arguments.http
    if arguments.insecure:
        values["insecure"] = rest["insecure"] = True
    if arguments.store:
        store["url"] = arguments.store
    if not (arguments.data_dir or store.get("url")):
        redis = arguments.redis or os.environ.get(REDIS_VARIABLE, "")
        if redis:
            store["redis_url"] = redis
    try:
        return ManagerProcessSettings.model_validate(values)
    except ValidationError as error:
        known = [name for name, _, _ in describe_settings()]
        raise UsageError(explain_settings(error, known)) from None


def nested(assignments: list[str]) -> dict[str, Any]:
    """{"leadership": {"ttl_s": "6"}} from "leadership.ttl_s=6", as deep as there are dots."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        *groups, field = name.split(".")
        if not (equals and groups and field and all(groups)):
            raise UsageError(f"--set {assignment}: write GROUP.NAME=VALUE")
        place = values
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise UsageError(f"--set {name}: {group} is no group of settings")
        place[field] = value
    return values


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    configure(arguments.log_format, arguments.log_level, manager=settings.manager_id)
    urls = (arguments.redis or "", arguments.store or "")
    values = [*urls, *(given.partition("=")[2] for given in arguments.set)]
    if warning := exposed_password(values, "store.password, advice.password"):
        log.warning("%s", warning)
    try:
        from reconfig_manager.service.manager_service import ManagerStartError
    except ImportError as error:
        raise CommandError(f"{error.name} is missing: pip install 'dynatops[manager]'") from None
    try:
        run_async(_serve(settings, as_json=arguments.json))
    except ManagerStartError as error:
        raise CommandError(str(error)) from None
    return 0


async def _serve(settings: Any, *, as_json: bool) -> None:
    from reconfig_manager.service.manager_service import ManagerService

    service = ManagerService(settings)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    starting = asyncio.create_task(service.start())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    starting.result()
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    _announce(service, as_json=as_json)
    running = asyncio.create_task(service.run())
    security, rest = settings.security, settings.rest
    files = (security.tls_cert, security.tls_key, rest.tls_cert, rest.tls_key, rest.tokens)
    async with watched(files, security.watch_s, service.reload, service.supervisor):
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        # A thread, or a store that does not answer, would hold the process up.
        end_within(_FAILED_END_S)
    stopped.cancel()
    await service.stop()
    await running


def _announce(service: Any, *, as_json: bool) -> None:
    if as_json:
        addresses = {
            "manager_id": service.manager_id,
            "address": service.address,
            "http": service.http_url,
            # For further managers: they may share this one's state.
            "redis": service.opened.shared_url if service.opened else "",
        }
        print(json.dumps(addresses), flush=True)
        return
    print(
        f"manager {service.manager_id}: brokers at {service.address}, people at "
        f"{service.http_url}; Ctrl-C to stop it",
        flush=True,
    )
