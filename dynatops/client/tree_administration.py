"""The topology of brokers in a tree: asked for, given to one of them, and looked for at all.

What a topology is, is not known here: it comes and goes as text, with a digest that differs where
topologies do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc

from dynatops.client.errors import ConnectError
from dynatops.client.inspection import TIMEOUT_S, InspectionError, Inspector, raise_if_not_let_in
from dynatops.kit.security.tls import explain
from dynatops.v1.administration_pb2 import ChangeTopologyRequest, TopologyTaken
from dynatops.v1.administration_pb2_grpc import AdministrationStub
from dynatops.v1.inspection_pb2 import BrokerReport, DescribeTopologyRequest, TopologyReport
from dynatops.v1.inspection_pb2_grpc import InspectionStub

# To write to its disk, too.
_COMMAND_TIMEOUT_S = 15.0
_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


class CommandRefusedError(InspectionError):
    """The broker does not do it, and says why."""


class TreeAdministrator(Inspector):
    """Has rights of its own: those of its token."""

    async def topology(self) -> tuple[str, TopologyReport]:
        """Of the first broker named that answers, and where that is."""
        reasons: list[str] = []
        for address in self.seeds:
            try:
                return address, await self._topology_of(address)
            except grpc.aio.AioRpcError as error:
                raise_if_not_let_in(error)
                reasons.append(explain(error.details() or str(error.code())))
        raise ConnectError(self.seeds, reasons[0])

    async def _topology_of(self, address: str) -> TopologyReport:
        stub = InspectionStub(self.channel(address))
        return await stub.DescribeTopology(
            DescribeTopologyRequest(), timeout=TIMEOUT_S, metadata=self.metadata
        )

    async def reports(self, addresses: Iterable[str]) -> dict[str, BrokerReport | None]:
        """What is at each of them; None where nobody answers."""
        asked = list(dict.fromkeys(addresses))
        return dict(zip(asked, await asyncio.gather(*map(self._report, asked)), strict=True))

    async def _report(self, address: str) -> BrokerReport | None:
        try:
            return await self.broker(address)
        except grpc.aio.AioRpcError as error:
            raise_if_not_let_in(error)
            return None

    async def change_topology(
        self, address: str, topology: str, *, dry_run: bool = False
    ) -> TopologyTaken:
        """Raises CommandRefusedError, and what an Inspector raises."""
        stub = AdministrationStub(self.channel(address))
        request = ChangeTopologyRequest(topology=topology, dry_run=dry_run)
        try:
            return await stub.ChangeTopology(
                request, timeout=_COMMAND_TIMEOUT_S, metadata=self.metadata
            )
        except grpc.aio.AioRpcError as error:
            raise_if_not_let_in(error)
            reason = error.details() or str(error.code())
            if error.code() in _REFUSALS:
                raise CommandRefusedError(reason) from None
            raise InspectionError(f"broker at {address} does not answer: {reason}") from None
