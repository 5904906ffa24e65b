"""Containers of the cores that are of no bounded type, by the reason why they cannot grow."""

from __future__ import annotations

# Of each: module, class and attribute.
BOUNDED_OTHERWISE: dict[str, str] = {
    "It is emptied after each input, or when the input has been dealt with.": """
        broker_agent.core.base.outbox.BrokerOutbox.effects
        broker_agent.core.base.outbox.BrokerOutbox.node_effects
        broker_agent.core.base.outbox.BrokerOutbox.wishes
        broker_agent.core.base.outbox.BrokerOutbox.publications
        broker_agent.core.base.outbox.BrokerOutbox.touched
        broker_agent.core.base.outbox.BrokerOutbox.too_slow
        broker_agent.core.base.outbox.BrokerOutbox.settled
        broker_agent.core.base.outbox.BrokerOutbox.crowds
        broker_agent.runtime.observing.narrating._RingNews.lost
        broker_agent.core.reading.filter_requests._Load._new
        overlay.base.effects.Outbox._frames
        overlay.base.peers.Directory._moved
        overlay.base.peers.Directory._reborn
        overlay.history.reader.ReadResult.parts
        overlay.history.replication.Replication._answers
        overlay.history.replication._Answer._columns
        overlay.history.replication._Answer.acknowledged
        overlay.history.replication._Answer.returned
        overlay.history.replication.Replication._confirmations
        overlay.tree.trees.Trees._changes
        overlay.tree.trees.Trees._own_changes
        overlay.tree.trees.Trees._refreshes
        overlay.forwarding.tree_context.TreeContext.effects
        overlay.forwarding.link.Link._frames
        overlay.forwarding.copies.CopyKeeping._grown
    """,
    "It is as large as the message, run, file, setting or code that it is made from.": """
        dynatops.kit.observing.log_operations.DeclaredOperations._by_name
        dynatops.kit.background.Supervisor._tasks
        dynatops.kit.observing.logs.JsonFormatter._always
        dynatops.kit.observing.logs.OncePerMinute._said
        dynatops.kit.bundles.Bundle._payloads
        dynatops.kit.observing.metrics.Sample.labels
        broker_agent.core.rights.access.Access._claiming
        broker_agent.core.selection.advice.SelectionAdvice.clients
        broker_agent.core.selection.advice.SelectionAdvice.topics
        broker_agent.core.reading.delivery._Selection._attributes
        broker_agent.core.reading.delivery._Selection._contents
        broker_agent.core.options.BrokerOptions.labels
        broker_agent.core.keeping.journal.Stored.cursors
        broker_agent.core.keeping.journal.Stored.own_cursors
        broker_agent.core.keeping.journal.Stored.pieces
        broker_agent.core.keeping.journal.Stored.sessions
        broker_agent.core.selection.selection_settings.AdviceSettings.__pydantic_config__
        broker_agent.core.selection.selection_settings.SelectionSettings.__pydantic_config__
        broker_agent.core.base.core_settings.CoreSettings.__pydantic_config__
        broker_agent.core.hosting.transfer.Transfer._due_s
        broker_agent.core.hosting.transfer.Transfer._incoming
        broker_agent.core.hosting.transfer.Transfer._outgoing
        broker_agent.runtime.listeners.listener.Listeners._listeners
        broker_agent.runtime.listeners.listener.Listeners.addresses
        broker_agent.runtime.peers.links.Links.options
        overlay.placement.geometry.RingGeometry._index
        overlay.chord.place.PlaceChecks._seeds
        overlay.chord.ring.Ring.seeds
        overlay.base.overlay_settings.OverlaySettings.__pydantic_config__
        broker_agent.core.options.BrokerOptions.doors
        broker_agent.core.selection.summaries.Announcer._doors
        broker_agent.core.selection.summaries.Neighbour.doors
        overlay.forwarding.matching.Match.parts
        overlay.forwarding.portions.RunSelection._attributes
        overlay.forwarding.portions.RunSelection._made
        overlay.forwarding.topology.Topology._neighbours
        overlay.forwarding.topology.Topology._parents
        overlay.forwarding.topology._Reading._problems
        overlay.forwarding.forwarding_settings.ForwardingSettings.__pydantic_config__
        overlay.forwarding.forwarder.Forwarder._handlers
        overlay.forwarding.stream_log.LogEntry.parts
    """,
    (
        "An entry for each session or connection: core.sessions_max, core.unnamed_max, "
        "core.connections_max."
    ): """
        dynatops.kit.serving.accepting.Acceptor._tasks
        dynatops.kit.serving.accepting.ConnectionTable._asking
        dynatops.kit.serving.accepting.ConnectionTable._connections
        dynatops.kit.serving.accepting.ConnectionTable.closed
        dynatops.kit.serving.first_reads.FirstReads._places
        dynatops.kit.serving.first_reads.FirstReads._waiting
        broker_agent.core.reading.feeds.Feed.members
        broker_agent.core.reading.following.Following._sessions
        broker_agent.core.clients.gate.Gate._connected
        broker_agent.core.clients.gate.Gate._connections
        broker_agent.core.clients.gate.Gate._counted
        broker_agent.core.clients.gate.Gate._due
        broker_agent.core.clients.gate.Gate._waiting
        broker_agent.core.clients.holding.Holding._connections
        broker_agent.core.keeping.journal.Changes.confirmed
        broker_agent.core.keeping.journal.Changes.removed
        broker_agent.core.keeping.journal.Changes.sessions
        broker_agent.core.keeping.journal.Changes.taken
        broker_agent.core.keeping.journal.SessionJournal._before
        broker_agent.core.keeping.journal.SessionJournal._changing
        broker_agent.core.keeping.journal.SessionJournal._first
        broker_agent.core.keeping.journal.SessionJournal._gone
        broker_agent.core.keeping.journal.SessionJournal._removing
        broker_agent.core.keeping.journal.SessionJournal._with_untold
        broker_agent.core.keeping.journal._Capture.records
        broker_agent.core.keeping.journal._Capture.serials
        broker_agent.core.reports.logbook.Logbook._places
        broker_agent.core.clients.reception.Reception._doors
        broker_agent.core.clients.reception.Reception._unnamed
        broker_agent.core.clients.reception.Reception._unnamed_by_host
        broker_agent.core.sessions.registry.Registry._detached
        broker_agent.core.sessions.registry.Registry._turn
        broker_agent.core.sessions.registry.Registry.clients
        broker_agent.core.sessions.registry.Registry.connections
        broker_agent.core.clients.flow.Flow._published
        broker_agent.core.clients.flow.Flow._unread
        broker_agent.core.clients.flow.Flow._waiting_for_others
        broker_agent.core.clients.flow.Flow._waiting_for_readers
        broker_agent.core.status.session_reports.SessionReports._names
        broker_agent.core.reading.subscriptions.Subscriptions._names_left
        broker_agent.core.sessions.unsaved.Unsaved.queues
        broker_agent.core.sessions.unsaved.Unsaved.sessions
        broker_agent.runtime.agent.Agent._connections
        broker_agent.runtime.peers.links.Links._unnamed
    """,
    "An entry for each token of the tokens' file.": """
        broker_agent.core.clients.gate.Gate._filters
        broker_agent.core.clients.gate.Gate._paces
        broker_agent.core.clients.gate.Gate._sessions
        broker_agent.core.clients.gate.Gate._topics
    """,
    (
        "Within one session: filters_per_session_max, followed_topics_max, "
        "session_queue_*_max, session_answers_*_max."
    ): """
        broker_agent.core.reading.confirming.UnconfirmedRequest.catalogue
        broker_agent.core.reading.confirming.UnconfirmedRequest.held
        broker_agent.core.reading.confirming.UnconfirmedRequest.missing
        broker_agent.core.reading.confirming.UnconfirmedRequest.new
        broker_agent.core.keeping.journal.Changes.pieces
        broker_agent.core.sessions.session.Session._answers
        broker_agent.core.sessions.session.Session._marks
        broker_agent.core.sessions.session.Session._pieces
        broker_agent.core.sessions.session.Session._untold
        broker_agent.core.sessions.session.Session.filters
    """,
    ("Requests to subscribe: each is in a session that waits for it, and ends with it."): """
        broker_agent.core.reading.confirming.Confirming._open
        broker_agent.core.reading.confirming.Confirming.held
        broker_agent.core.reading.confirming.Confirming.unsaved
        broker_agent.core.clients.holding.Holding._held
        broker_agent.core.keeping.journal._Capture.confirmations
        broker_agent.core.reading.subscriptions.Subscriptions._waiting
        broker_agent.core.reading.subscriptions.Subscriptions._waiting_for_catalogue
    """,
    ("An entry for each topic that sessions here subscribe to, which their filters bound."): """
        dynatops.kit.filters.trie.FilterTrie._exact
        dynatops.kit.filters.trie.FilterTrie._root
        dynatops.kit.filters.trie.FilterTrie._shared
        broker_agent.core.reading.delivery.SessionDelivery._passed_over
        broker_agent.core.reading.feeds.FeedProgress._ahead
        broker_agent.core.reading.feeds.FeedProgress._behind
        broker_agent.core.keeping.journal.Changes.cursors
        broker_agent.core.keeping.journal.Changes.own_cursors
        broker_agent.core.keeping.journal.SessionJournal._cursors
        broker_agent.core.keeping.journal.SessionJournal._own_cursors
        broker_agent.core.keeping.journal._Capture.cursors
        broker_agent.core.keeping.journal._Capture.own_cursors
        broker_agent.core.reading.readers.Readers._topics
        broker_agent.core.reports.reporting.Reporting._told
        broker_agent.core.selection.summaries.LocalTopics.counts
        broker_agent.core.sessions.unsaved.Unsaved.topics
        overlay.tree.interests.Interests._postponed
        overlay.tree.interests.Interests._unsettled
        overlay.tree.interests.Interests._wanted
        overlay.history.reader.TopicReader._parked
    """,
    (
        "An entry for each topic of this node's: forgotten when idle for "
        "overlay.topic_idle_s, and bounded for each token."
    ): """
        overlay.history.succession.Succession._handed
        broker_agent.core.publishing.announcing.Announcing._open
        broker_agent.core.publishing.announcing.Announcing._topics
        broker_agent.core.publishing.announcing.Announcing._waiting
        broker_agent.core.clients.gate.TopicsInUse._used_s
        overlay.history.reigns.Reigns._beats
        overlay.history.replication.Replication._in_range
        overlay.history.replication.Replication._unconfirmed
        overlay.history.replication.Replication._uncopied
        overlay.history.replication.Replication._unsent
        overlay.history.replication.Replication.copies
        overlay.base.retention.LogBudget._by_activity
        overlay.tree.tree_requests.TreeRequests._complaint_due_s
        overlay.tree.tree_requests.TreeRequests._orphans
        overlay.tree.trees.Trees.topics
    """,
    "Names of the catalogue: overlay.catalogue_names_max.": """
        broker_agent.core.reading.following.Following._unread
        broker_agent.core.reading.subscriptions.Subscriptions._catalogue_terms
        broker_agent.core.reading.following.TopicNames._root
        overlay.history.listing.Listing._parts
        overlay.history.listing._CataloguePart.asked
        overlay.history.listing._CataloguePart.remaining
        overlay.history.listing._CataloguePart.soon
        overlay.history.listing._CataloguePart.topics
    """,
    (
        "Events and publishers of one topic: overlay.log_events_max, log_bytes_max, publishers_max."
    ): """
        dynatops.kit.repeats.Publishers._windows
        overlay.history.topic_log.TopicLog.entries
    """,
    (
        "Brokers: overlay.peers_known_max, a finger each, or the members of one tree; "
        "the dead are dropped."
    ): """
        broker_agent.core.hosting.node_hosting.NodeHosting._forwards
        broker_agent.core.hosting.outcomes.Outcomes._committed
        broker_agent.core.selection.summaries.Neighbour.sent_keys
        broker_agent.core.selection.summaries.Neighbours._keyless
        broker_agent.core.selection.summaries.Neighbours._known
        broker_agent.core.hosting.tallies.Tallies._takers
        overlay.chord.farewell.Farewell._askers
        overlay.chord.farewell.Farewell._unconfirmed
        overlay.chord.fingers.Fingers._confirmed
        overlay.chord.fingers.Fingers._doubted
        overlay.chord.fingers.Fingers._fingers
        overlay.chord.fingers.Fingers._strayed
        overlay.chord.lookups.Lookups._pending
        overlay.base.peers.Directory._heard_s
        overlay.base.peers.Directory._peers
        overlay.base.peers.Liveness._watches
        overlay.chord.ring.Ring._refused
        overlay.chord.ring.Ring.successors
        overlay.chord.round_trips.RoundTrips._news
        overlay.chord.round_trips.RoundTrips._open
        overlay.chord.round_trips.RoundTrips._seconds
        overlay.chord.routing.RoutingTable._distances
        overlay.chord.routing.RoutingTable._peers
        overlay.history.copy_search.CopySearch._unanswered
        overlay.history.succession.Succession._claims
        overlay.history.succession.Succession._predecessors
        overlay.history.succession.Succession._searches
        overlay.tree.tree_state.Edge._members
        overlay.tree.tree_state.TopicTree.delegates
        overlay.tree.tree_state.TopicTree.entrusted
        overlay.tree.trees.Trees._children
        overlay.tree.trees.Trees._parents
    """,
    (
        "Neighbours in a tree, an entry each; and repairs under way, forwarding.fetches_max, with "
        "a part of each neighbour's answer."
    ): """
        overlay.forwarding.confirmations.Confirmations._waiting
        overlay.forwarding.copies.CopyKeeping._stores
        overlay.forwarding.copies.CopySending._held
        overlay.forwarding.copies.Recovery._answers
        overlay.forwarding.copies.Recovery._knew
        overlay.forwarding.fetches.Fetches._of_sub
        overlay.forwarding.fetches.OpenFetch.own_todo
        overlay.forwarding.fetches.OpenFetch.places
        overlay.forwarding.fetches.OpenFetch.subs
        overlay.forwarding.fetches.OpenFetch.waiting
        overlay.forwarding.forwarder.Forwarder._credits
        overlay.forwarding.serving.NeighbourServing._resuming
        overlay.forwarding.tree_context.TreeContext.neighbours
    """,
    "Streams that are known: forwarding.streams_max, and of one broker the last lives.": """
        overlay.forwarding.neighbours.TreeNeighbour.dropped
        overlay.forwarding.neighbours.TreeNeighbour.moved
        overlay.forwarding.neighbours.TreeNeighbour.sent
        overlay.forwarding.stream_log.OwnedStreams._ordinals
        overlay.forwarding.stream_log.OwnedStreams.floors
        overlay.forwarding.stream_log.OwnedStreams.highs
    """,
    "Filters of sessions here and of neighbours, who bound them.": """
        overlay.forwarding.table_exchange.TableExchange._wanted
        overlay.forwarding.neighbours.TreeNeighbour.incoming
        overlay.forwarding.neighbours.TreeNeighbour.incoming_ads
        overlay.forwarding.tables.SubscriptionTables._ads_told
        overlay.forwarding.tables.SubscriptionTables._advertised
        overlay.forwarding.tables.SubscriptionTables._told
        overlay.forwarding.tables.SubscriptionTables._wanted
    """,
    "A bound of its own, kept where it is filled, and counted there.": """
        overlay.forwarding.link.Link._unconfirmed
        overlay.forwarding.stream_log.StreamLog._entries
        overlay.forwarding.tables.SubscriptionTables._matches
        dynatops.kit.bounded.BoundedQueue._items
        broker_agent.core.reports.logbook.LogbookPage.publications
        broker_agent.core.reports.logbook.LogbookPage.requests
        broker_agent.core.reports.logbook.LogbookPage.sessions
        broker_agent.core.reports.logbook.LogbookPage.subscriptions
        broker_agent.core.selection.move_limits.MovedLately._at_s
        broker_agent.core.publishing.publishing.Publishing._busy
        broker_agent.core.publishing.publishing._PublisherStream.open
        broker_agent.runtime.observing.http_server.HttpServer.requests
        broker_agent.runtime.peers.links.Links._tasks
        broker_agent.runtime.peers.links._Link._queue
        broker_agent.runtime.manager.uplink.Uplink._frames
    """,
}
