"""Who is who in simulated networks: brokers ask for tokens, so that hostile clients have their own.

All may publish and subscribe to whatever there is: what one client must not do to another, no rule
says. Half of the honest clients have a token that claims their ids; the ids of the others anybody
may use at a broker where they have no session, and they are turned away there.
"""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.rights.access import Access
from dynatops.kit.security.token_rights import TokenRules
from dynatops.kit.security.tokens import hash_of

CLAIMING = "claiming"
PLAIN = "plain"
HOSTILE = "hostile"
_ODD = "13579"
_CLAIMED = tuple(f"c*{digit}" for digit in _ODD)


def token_of(client: str) -> str:
    return CLAIMING if is_claimed(client) else PLAIN


def is_claimed(client: str) -> bool:
    """Whether nobody but an honest client may have this id."""
    return client.startswith("c") and client[-1] in _ODD


def simulated_access(settings: CoreSettings) -> Access:
    def rules(name: str, **ids: tuple[str, ...] | bool) -> TokenRules:
        every = ("#",)
        return TokenRules(
            name=name,
            sha256=hash_of(name),
            publish=every,
            subscribe=every,
            **ids,  # type: ignore[arg-type]
        )

    claiming = rules(CLAIMING, client_ids=_CLAIMED, claim_client_ids=True)
    return Access(settings, [claiming, rules(PLAIN), rules(HOSTILE)])
