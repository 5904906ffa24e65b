"""What there is to be asked for at `/v1`: a module each, with its routes in `router`.

This is their registry: a resource is a module here and its name below.
"""

from __future__ import annotations

from reconfig_manager.rest.resources import (
    analytics,
    audit,
    brokers,
    cluster,
    cost,
    events,
    metrics,
    placement,
    policy,
    probes,
    reconfigurations,
    stores,
    topics,
)

RESOURCES = (
    cluster,
    brokers,
    topics,
    cost,
    events,
    placement,
    reconfigurations,
    stores,
    policy,
    analytics,
    audit,
    metrics,
)
# For these no token is asked: they tell no secrets.
OPEN_RESOURCES = (probes,)
