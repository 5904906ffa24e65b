"""What a broker has if it is asked for, and if its packages are installed: advice, a lake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_agent.core.broker import Broker
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection_settings import AdviceSettings
from broker_agent.process_settings import BrokerSettings
from dynatops.kit.redis_access import RedisPasswordError
from dynatops.kit.serving.start_errors import StartError
from dynatops.lake.lake_settings import LakeSettings

if TYPE_CHECKING:
    from broker_agent.runtime.analytics.advice import SelectionTables
    from broker_agent.runtime.analytics.lake_feed import LakeFeed
    from dynatops.kit.advice.reader import AdviceReader
    from dynatops.lake.files import Lake


def advice_reader(
    settings: AdviceSettings, take: Callable[[SelectionAdvice | None], None]
) -> AdviceReader[SelectionTables] | None:
    """Raises StartError."""
    if not settings.redis_url:
        return None
    try:
        from broker_agent.runtime.analytics.advice import selection_reader  # noqa: PLC0415  # an extra
    except ImportError:
        raise StartError(
            "advice.redis_url is set, but redis is missing: pip install 'dynatops[redis]'"
        ) from None
    try:
        return selection_reader(settings, take)
    except RedisPasswordError as error:
        raise StartError(f"advice.password: {error}") from None
    except ValueError:
        # Not what is wrong with it: there may be a password in that.
        raise StartError(
            "advice.redis_url: write redis://host:port/0, rediss://host:port/0 or unix:///path"
        ) from None


def open_lake(settings: LakeSettings) -> Lake | None:
    """Raises StartError."""
    if not settings.url:
        return None
    try:
        from dynatops.lake.files import Lake, LakeError  # noqa: PLC0415  # an extra
    except ImportError:
        raise StartError(
            "lake.url is set, but pyarrow is missing: pip install 'dynatops[lake]'"
        ) from None
    try:
        return Lake.open(settings.url, timeout_s=settings.timeout_s)
    except LakeError as error:
        raise StartError(f"lake.url: {error}") from None


def lake_feed(
    core: Broker, lake: Lake, settings: BrokerSettings, now: Callable[[], float]
) -> LakeFeed:
    from broker_agent.runtime.analytics.lake_feed import LakeFeed  # noqa: PLC0415  # needs the extra

    return LakeFeed(core, lake, settings.lake, settings.labels, now)
