"""Every number that finding the past depends on, with its unit, its reason and its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overlay.base.overlay_settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSettings:
    # Read by pydantic where these settings are nested in a process's: unknown keys are refused.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    units_max: int = setting(
        50_000, "Topics and patterns that stores are known for; further ones are not noted."
    )
    advertising_brokers_max: int = setting(
        1_000, "Brokers that have told of stores; for a further one the longest unheard-of goes."
    )
    hops_max: int = setting(
        64, "Brokers on the way to a store; one that is farther away is not known of."
    )
    renew_s: float = setting(
        1.5, "How often it is said again that what was told of stores still holds."
    )
    expiry_s: float = setting(
        6.0, "What was told of stores, and not renewed for so long, does not hold any more."
    )
    ask_again_s: float = setting(
        0.5, "Who misses some of what was told asks for all of it, and again after this."
    )
    units_per_message: int = setting(
        2_000, "Topics and patterns in one advertisement; more follow in further ones."
    )
    asks_max: int = setting(
        1_000, "Requests for the past open at one broker, of its clients; more are refused."
    )
    units_per_ask_max: int = setting(
        1_000, "Topics and patterns that one filter may be about; one that is wider is refused."
    )
    places_max: int = setting(
        100_000,
        "Topics of which it is known how far a request has come, should another store have to go "
        "on; of those forgotten it sends events again, which clients drop.",
    )
    response_patience_s: float = setting(
        4.0, "A store that does not answer for so long is given up for the next nearest."
    )
    credit_again_s: float = setting(
        1.0, "A store that may send more, and does not, is told so again after this."
    )
    retry_pause_s: float = setting(
        0.5, "A request that found no store although there may be one is made again after this."
    )
    attempts_max: int = setting(
        8, "Times that a request is made anew without any progress; then it is given up."
    )
    early_responses_max: int = setting(
        256, "Responses kept that overtook others; if one is dropped the request is made anew."
    )
    serves_max: int = setting(
        1_000, "Requests that a store has open at a time; to further ones it says that it cannot."
    )
    reads_at_once: int = setting(
        4, "Portions that a store reads from its disk at a time; others wait for their turn."
    )
    portion_bytes: int = setting(
        256 << 10, "A portion that a store reads, and sends as one response, has about so much."
    )
    serve_idle_s: float = setting(
        60.0, "A request whose asker has not taken anything for so long is closed by the store."
    )
    catch_up_bytes: int = setting(
        4 << 20, "Events on their way to a store that catches up, and not on its disk yet."
    )
    first_patience_s: float = setting(
        6.0,
        "A store that knows of no other store of a unit believes that it is the first after this; "
        "whatever others there are is known to all by then.",
    )
    catch_up_again_s: float = setting(
        2.0,
        "A store that got something that it lacked, or could not get it, asks all others again "
        "after this; while there is nothing to get, after twice as long each time.",
    )
    catch_up_pause_max_s: float = setting(
        60.0, "Stores compare what their logs have at least as often as this."
    )
    catch_up_patience_s: float = setting(
        60.0,
        "A store that others have not answered for so long serves what it has; it goes on asking.",
    )
    spans_per_ask: int = setting(
        200, "Holes in a store's log that one question to another store is about."
    )

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith("_s") and not value > 0:
                raise ValueError(f"{name} must be a positive number of seconds")
            if not name.endswith("_s") and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.expiry_s <= self.renew_s:
            raise ValueError("expiry_s must be longer than renew_s")
