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
        100_000, "Topics and patterns that stores are known for; further ones are not noted."
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

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith("_s") and not value > 0:
                raise ValueError(f"{name} must be a positive number of seconds")
            if not name.endswith("_s") and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.expiry_s <= self.renew_s:
            raise ValueError("expiry_s must be longer than renew_s")
