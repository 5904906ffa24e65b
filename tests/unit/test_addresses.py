"""Addresses as people write them."""

from __future__ import annotations

import pytest

from dynatops.kit.addresses import join_address, split_address


@pytest.mark.parametrize("address", ["127.0.0.1:7400", "broker.example:0", "[::1]:7400"])
def test_what_is_taken_apart_is_put_together(address: str) -> None:
    assert join_address(*split_address(address)) == address
