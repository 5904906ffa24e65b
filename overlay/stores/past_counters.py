"""What a broker counts of finding the past. Names and meanings here are shown to operators."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class PastCounters:
    offers_closer: int = counter(
        "Advertised units whose store is closer than any known: noted, and told further on."
    )
    offers_equal: int = counter(
        "Advertised units whose store is as far as the closest: noted beside it, told to nobody."
    )
    offers_farther: int = counter(
        "Advertised units whose store is farther: set aside until what is closer has gone."
    )
    offers_withdrawn: int = counter("Advertised units that a neighbour has withdrawn.")
    offers_expired: int = counter(
        "Advertised units that a neighbour told, and then was gone, or renewed no more."
    )
    units_refused: int = counter("Units of stores not noted, for lack of room.")
    offers_malformed: int = counter(
        "Offers not taken: a way that is too long, or leads through here, or a unit that is none."
    )
    advertisements_sent: int = counter("Messages with something new of stores, to neighbours.")
    advertisements_renewed: int = counter("Messages that say that what was told still holds.")
    advertisements_missed: int = counter(
        "Times something was missing of what a neighbour told of stores, and was asked for again."
    )
    advertising_brokers_dropped: int = counter(
        "Brokers that had told of stores, forgotten with that for others."
    )
    requests_forwarded: int = counter("Requests for the past sent on towards a store.")
    requests_unanswerable: int = counter(
        "Requests for the past that came here and could not go on: no store, or too many hops."
    )
    responses_forwarded: int = counter("Answers of stores sent back along the way of a request.")
    past_messages_strange: int = counter(
        "Requests, answers and credits that are not for this broker, or that nobody waits for."
    )
    asks: int = counter("Requests for the past made for clients of this broker.")
    asks_refused: int = counter("Of these, refused because too many were open.")
    asks_failed: int = counter("Of these, that ended with an error.")
    asks_moved: int = counter("Times a request went on at another store.")
    asks_retried: int = counter("Times a request was made anew for want of an answer.")
    past_answers: int = counter("Stores that began to answer a request made at this broker.")
    past_answer_hops: int = counter("How many hops these were away, all together.")
    ask_places_dropped: int = counter(
        "Topics of a request of which it was forgotten how far it has come."
    )
    ask_responses_early: int = counter("Answers that overtook others and could not be kept.")
    past_events_received: int = counter("Events of the past that came for clients of this broker.")
    serves: int = counter("Requests for the past that the store here took on.")
    serves_refused: int = counter("Of these, refused: too many, or something wrong with them.")
    serves_closed: int = counter("Of these, closed because nobody took anything any more.")
    serves_forgotten: int = counter(
        "Times more was granted for a request that the store here does not know any more."
    )
    past_events_read: int = counter("Events that the store here has read for requests.")
    catch_up_rounds: int = counter(
        "Times that the store here has asked all others for what its log lacks."
    )
    catch_up_failures: int = counter("Of these, other stores that could not be asked for all.")
    catch_up_spans: int = counter("Ranges that the log here lacked, and another store had.")
    catch_up_events: int = counter("Events that came from other stores to fill them.")
    past_events_served: int = counter("Of these, events that matched, and were sent.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
