"""What an error says fits a screen; what it is about, it has."""

from __future__ import annotations

from dynatops.client.errors import SubscribeError


def test_few_topics_are_said() -> None:
    error = SubscribeError(["a", "b/#"], "not confirmed within 30 s")
    assert str(error) == "subscribing to 'a', 'b/#': not confirmed within 30 s"


def test_of_many_topics_some_are_said() -> None:
    topics = [f"t/{i}" for i in range(5_000)]
    error = SubscribeError(topics, "not confirmed within 30 s")
    assert str(error).endswith("'t/9', … (5,000 in all): not confirmed within 30 s")
    assert error.topics == topics
