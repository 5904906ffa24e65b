"""What administrators have a broker do: commands of gRPC, each in the log with who gave it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc

from broker_agent.runtime.observing.bearer import token_in
from dynatops.kit.observing.log_operations import TOPOLOGY_COMMANDED
from dynatops.v1.administration_pb2 import ChangeTopologyRequest, TopologyTaken
from dynatops.v1.administration_pb2_grpc import AdministrationServicer
from overlay.forwarding.topology import Topology, TopologyError

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

log = logging.getLogger(__name__)


class AdministrationService(AdministrationServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def ChangeTopology(self, request: ChangeTopologyRequest, context: Any) -> TopologyTaken:
        core = self._agent.core
        actor = core.token_name(token_in(context.invocation_metadata())) or None
        try:
            topology = Topology.from_text(request.topology)
        except TopologyError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no topology: {error}")
            raise AssertionError("unreachable") from None
        problem = core.topology_problem(topology)
        if not request.dry_run:
            TOPOLOGY_COMMANDED.log(
                log,
                broker=self._agent.broker_id,
                version=topology.version,
                actor=actor,
                outcome=problem or "taken",
            )
        if problem:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        was_known = core.describe_topology().digest == topology.digest
        not_kept = "" if request.dry_run else await self._agent.change_topology(topology)
        return TopologyTaken(
            broker_id=self._agent.broker_id,
            version=topology.version,
            digest=topology.digest,
            was_known=was_known,
            not_kept=not_kept,
        )
