"""What the dashboard shows: a row for each subject, a line or two for each panel."""

from __future__ import annotations

from dashboard_panels import (
    PICK,
    Panel,
    Row,
    each_broker,
    each_rate,
    mean,
    quantile,
    quantiles,
    rate,
    ratio,
    stat,
    total,
)

LOSSES = " + ".join(
    f"sum (increase(dynatops_broker_{kind}_events_total{PICK}[1h]))" for kind in ("lost", "dropped")
)
PAUSES = f"increase(dynatops_pause_seconds_bucket{PICK}[1h])"


def job_rows(kind: str) -> str:
    """All managers tell the same."""
    return f"max by (advice) (increase(dynatops_job_rows_{kind}_total{PICK}[1h]))"


ROWS = (
    Row(
        "At a glance",
        (
            stat("Brokers ready", "none", total("dynatops_node_ready")),
            stat("Sessions", "short", total("dynatops_broker_sessions")),
            stat("Published", "eps", rate("dynatops_broker_published_events_total")),
            stat("Delivered", "eps", rate("dynatops_broker_delivered_events_total")),
            stat(
                "Delivery, 99%",
                "s",
                quantile(0.99, "dynatops_broker_delivery_seconds"),
                "From the publisher's clock to the subscriber's broker.",
            ),
            stat(
                "Events lost or dropped in an hour",
                "short",
                LOSSES,
            ),
        ),
    ),
    Row(
        "Traffic",
        (
            Panel(
                "Events",
                "eps",
                (
                    (rate("dynatops_broker_published_events_total"), "published"),
                    (rate("dynatops_node_stamped_events_total"), "stamped"),
                    (rate("dynatops_broker_delivered_events_total"), "delivered"),
                ),
                "Published by clients; stamped at rendezvous points, once; delivered to sessions.",
            ),
            Panel(
                "Published, by broker", "eps", each_rate("dynatops_broker_published_events_total")
            ),
            Panel(
                "Delivered, by broker", "eps", each_rate("dynatops_broker_delivered_events_total")
            ),
            Panel(
                "Between brokers",
                "Bps",
                (
                    (rate("dynatops_broker_link_bytes_sent_total"), "links"),
                    (rate("dynatops_broker_published_bytes_total"), "published"),
                ),
                "What the network carries for what was published.",
            ),
            Panel(
                "Processor, by broker",
                "none",
                each_rate("dynatops_broker_cpu_seconds_total"),
                "Cores; a broker uses one.",
            ),
            Panel(
                "Memory, by broker", "bytes", each_broker("dynatops_broker_resident_memory_bytes")
            ),
        ),
    ),
    Row(
        "Latency",
        (
            Panel(
                "From publisher to subscriber's broker",
                "s",
                quantiles("dynatops_broker_delivery_seconds"),
                "Sampled; by the publisher's clock.",
            ),
            Panel("Until acknowledged", "s", quantiles("dynatops_broker_acknowledge_seconds")),
            Panel(
                "In sessions' queues",
                "s",
                quantiles("dynatops_broker_queue_wait_seconds"),
                "High: clients are slow, or were away.",
            ),
            Panel(
                "Lag of the event loop, 99%",
                "s",
                ((quantile(0.99, "dynatops_broker_loop_lag_seconds", "instance"), "{{instance}}"),),
                "A broker that is busy; everything there is as late.",
            ),
            Panel(
                "Hops to a subscriber",
                "none",
                (
                    (
                        ratio(
                            "dynatops_node_tree_delivered_hops_total",
                            "dynatops_node_tree_delivered_events_total",
                        ),
                        "mean",
                    ),
                ),
                "Links that events pass; what plans make shorter.",
            ),
            Panel(
                "Repairs",
                "ops",
                (
                    (rate("dynatops_broker_repairs_asked_total"), "asked for"),
                    (rate("dynatops_broker_publish_retries_total"), "publications sent again"),
                    (rate("dynatops_node_replica_resends_total"), "replicas sent again"),
                ),
            ),
        ),
    ),
    Row(
        "Ring and trees",
        (
            Panel(
                "Brokers, by status",
                "none",
                ((total("dynatops_node_status", "status"), "{{status}}"),),
                stacked=True,
            ),
            Panel(
                "Shares of the ring, added up",
                "percentunit",
                ((total("dynatops_node_range_ratio"), "all"),),
                "100%: one ring, and no range is nobody's.",
            ),
            Panel("Successors known", "none", each_broker("dynatops_node_successors"), "0: alone."),
            Panel("Topics, by rendezvous point", "short", each_broker("dynatops_node_topics")),
            Panel(
                "Trees through brokers",
                "short",
                (
                    (total("dynatops_node_member_trees"), "subscribed"),
                    (total("dynatops_node_relay_trees"), "only relayed"),
                ),
                stacked=True,
            ),
            Panel(
                "Relayed for each event",
                "none",
                (
                    (
                        ratio(
                            "dynatops_node_relayed_events_total",
                            "dynatops_node_stamped_events_total",
                        ),
                        "relays",
                    ),
                ),
                "External overhead; what plans make smaller.",
            ),
            Panel(
                "Changes",
                "ops",
                (
                    (rate("dynatops_node_tree_control_sent_total"), "tree messages"),
                    (rate("dynatops_node_peers_condemned_total"), "peers taken for dead"),
                    (rate("dynatops_node_takeovers_total"), "topics taken over"),
                    (rate("dynatops_node_handovers_total"), "topics handed over"),
                    (rate("dynatops_node_merges_total"), "histories joined"),
                ),
            ),
            Panel("Topics the replica lacks", "short", each_broker("dynatops_node_unsent_topics")),
            Panel("Recent events kept", "bytes", each_broker("dynatops_node_retained_bytes")),
        ),
    ),
    Row(
        "Queues and drops",
        (
            Panel(
                "Events in sessions' queues", "short", each_broker("dynatops_broker_queued_events")
            ),
            Panel(
                "Longest queue of a session",
                "short",
                each_broker("dynatops_broker_longest_queue_events"),
            ),
            Panel(
                "Waiting for other brokers",
                "bytes",
                each_broker("dynatops_broker_link_queued_bytes"),
            ),
            Panel(
                "Dropped",
                "eps",
                (
                    (rate("dynatops_broker_dropped_events_total"), "slow client"),
                    (rate("dynatops_broker_expired_events_total"), "absent client"),
                    (rate("dynatops_broker_lost_events_total"), "lost for good"),
                    (rate("dynatops_broker_publish_refused_events_total"), "refused to publisher"),
                    (rate("dynatops_broker_link_frames_dropped_total"), "frames between brokers"),
                ),
            ),
            Panel(
                "Acknowledgements that wait",
                "short",
                (
                    (total("dynatops_node_waiting_acknowledgements"), "for the replica"),
                    (total("dynatops_node_held_acknowledgements"), "for the catalogue"),
                    (
                        total("dynatops_broker_open_publication_streams"),
                        "at the publisher's broker",
                    ),
                ),
            ),
            Panel(
                "Publishers made to wait", "short", each_broker("dynatops_broker_publishers_paused")
            ),
        ),
    ),
    Row(
        "Sessions and selection",
        (
            Panel(
                "Sessions",
                "short",
                ((total("dynatops_broker_sessions", "state"), "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Sessions that come and go",
                "ops",
                (
                    (rate("dynatops_broker_sessions_opened_total"), "opened"),
                    (rate("dynatops_broker_sessions_resumed_total"), "resumed"),
                    (rate("dynatops_broker_sessions_moved_total"), "gone to another broker"),
                    (rate("dynatops_broker_sessions_expired_total"), "expired"),
                    (rate("dynatops_broker_sessions_closed_slow_total"), "too slow"),
                ),
            ),
            Panel(
                "Turned away",
                "ops",
                (
                    (rate("dynatops_broker_authentication_refused_total"), "token"),
                    (rate("dynatops_broker_sessions_refused_total"), "too many"),
                    (rate("dynatops_broker_publish_not_allowed_total"), "may not publish"),
                    (rate("dynatops_broker_subscribe_not_allowed_total"), "may not subscribe"),
                    (rate("dynatops_broker_client_errors_total"), "broke the rules"),
                ),
            ),
            Panel(
                "Subscriptions, by broker",
                "short",
                each_broker("dynatops_broker_subscriptions"),
                "Of sessions: pairs of session and pattern.",
            ),
            Panel(
                "Users sent to another broker",
                "ops",
                (
                    (rate("dynatops_broker_selection_redirects_similarity_total"), "more alike"),
                    (rate("dynatops_broker_selection_redirects_load_total"), "less loaded"),
                    (rate("dynatops_broker_selection_redirects_advised_total"), "advised"),
                    (rate("dynatops_broker_selection_redirects_held_back_total"), "held back"),
                ),
            ),
            Panel(
                "Patterns that brokers begin or cease to subscribe to",
                "ops",
                ((rate("dynatops_broker_subscription_changes_total"), "changes"),),
                "What selection makes fewer.",
            ),
        ),
    ),
    Row(
        "Reconfiguration",
        (
            Panel(
                "Managers",
                "none",
                (
                    (total("dynatops_leading"), "lead"),
                    (f"max (dynatops_managers{PICK})", "live"),
                    (f"min (dynatops_store_up{PICK})", "store answers"),
                    (total("dynatops_brokers_attached"), "brokers attached"),
                    (total("dynatops_broker_frozen"), "brokers frozen"),
                ),
            ),
            Panel(
                "Plans that ended",
                "none",
                (
                    (
                        f"sum by (state) (increase(dynatops_plans_ended_total{PICK}[1h]))",
                        "{{state}}",
                    ),
                ),
                "In an hour.",
                stacked=True,
            ),
            Panel(
                "Phase",
                "none",
                ((total("dynatops_plan_phase", "phase"), "{{phase}}"),),
                stacked=True,
            ),
            Panel(
                "Clients held back",
                "s",
                (
                    (
                        f"histogram_quantile(0.5, sum by (le) ({PAUSES}))",
                        "50%",
                    ),
                    (
                        f"histogram_quantile(0.99, sum by (le) ({PAUSES}))",
                        "99%",
                    ),
                ),
                "By plans of an hour, as brokers say.",
            ),
            Panel(
                "Seconds in each phase",
                "s",
                ((mean("dynatops_plan_phase_seconds", "phase"), "{{phase}}"),),
                "Mean of an hour.",
            ),
            Panel(
                "Measured by predicted",
                "none",
                (
                    (f"max (dynatops_plan_benefit_ratio{PICK})", "benefit"),
                    (f"max (dynatops_plan_messages_ratio{PICK})", "messages"),
                ),
                "Of the last plan that was measured. Messages above 1: more than eq. 11 allows.",
            ),
            Panel(
                "What is known",
                "percentunit",
                ((f"max (dynatops_model_completeness_ratio{PICK})", "brokers heard"),),
            ),
            Panel("Solver", "s", quantiles("dynatops_solver_seconds")),
            Panel(
                "Epoch, by broker",
                "none",
                each_broker("dynatops_broker_epoch"),
                "Of the placement in use; the same everywhere.",
            ),
        ),
    ),
    Row(
        "Analytics",
        (
            Panel(
                "Rows into the lake",
                "rowsps",
                (
                    (rate("dynatops_broker_lake_rows_written_total"), "written"),
                    (rate("dynatops_broker_lake_rows_dropped_total"), "dropped"),
                    (rate("dynatops_broker_lake_rows_lost_total"), "lost"),
                ),
            ),
            Panel("Rows that wait", "short", each_broker("dynatops_broker_lake_rows_waiting")),
            Panel(
                "Age of advice",
                "s",
                ((f"max by (advice) (dynatops_advice_age_seconds{PICK})", "{{advice}}"),),
                "By the job that computes it.",
            ),
            Panel(
                "Entries of advice",
                "short",
                (
                    (
                        f"max by (advice, table) (dynatops_advice_entries{PICK})",
                        "{{advice}} {{table}}",
                    ),
                ),
            ),
            Panel("Files into the lake", "ops", each_rate("dynatops_broker_lake_files_total")),
            Panel(
                "Since jobs ended well",
                "s",
                ((f"min by (advice) (dynatops_job_success_age_seconds{PICK})", "{{advice}}"),),
                "Also with nothing new.",
            ),
            Panel(
                "Jobs that fail",
                "none",
                ((f"max by (advice) (dynatops_job_failing{PICK})", "{{advice}}"),),
                "1: the last run failed; dynatops analytics status says why.",
            ),
            Panel(
                "Seconds of the last run",
                "s",
                ((f"max by (advice) (dynatops_job_seconds{PICK})", "{{advice}}"),),
            ),
            Panel(
                "Rows that jobs could not use",
                "short",
                (
                    (job_rows("quarantined"), "{{advice}} quarantined"),
                    (job_rows("dropped"), "{{advice}} too late"),
                ),
                "In an hour.",
            ),
        ),
    ),
)
