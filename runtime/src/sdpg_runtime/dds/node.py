"""A participant of a DDS domain: readers that are polled, writers, and a configuration that stays on this machine."""

from __future__ import annotations

from typing import Any

from cyclonedds.core import Entity
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

LOOPBACK = "lo"
_PARTICIPANTS = 32  # that find each other on the loopback interface

_domains: dict[int, tuple[str, Domain]] = {}  # of this process: cyclonedds makes each once


def configuration(interface: str) -> str:
    """Cyclone's XML. Linux' loopback interface can't multicast: there, everyone tries the ports of localhost."""
    general = f'<Interfaces><NetworkInterface name="{interface}"/></Interfaces>'
    discovery = "<ParticipantIndex>auto</ParticipantIndex>"
    if interface == LOOPBACK:
        general += "<AllowMulticast>false</AllowMulticast>"
        discovery += f"<MaxAutoParticipantIndex>{_PARTICIPANTS}</MaxAutoParticipantIndex>"
        discovery += '<Peers><Peer address="localhost"/></Peers>'
    return (
        f'<CycloneDDS><Domain Id="any"><General>{general}</General><Discovery>{discovery}</Discovery></Domain>'
        "</CycloneDDS>"
    )


class Node:
    """One participant. Readers keep the last few messages until they are polled; no call waits."""

    def __init__(self, domain: int, interface: str):
        made = _domains.get(domain)
        if made is None:
            made = _domains[domain] = (interface, Domain(domain, configuration(interface)))
        if made[0] != interface:
            raise ValueError(f"domain {domain} of this process is on the interface {made[0]} already, not {interface}")
        self._participant = DomainParticipant(domain)
        self._entities: list[Entity] = []

    def writer(self, topic: str, kind: Any) -> DataWriter:
        return self._kept(DataWriter(self._participant, Topic(self._participant, topic, kind)))

    def reader(self, topic: str, kind: Any, depth: int) -> DataReader:
        """Of messages from others; of those that nobody polled in time, the last `depth` are kept."""
        qos = Qos(Policy.Reliability.BestEffort, Policy.History.KeepLast(depth), Policy.IgnoreLocal.Participant)
        return self._kept(DataReader(self._participant, Topic(self._participant, topic, kind), qos=qos))

    def _kept(self, entity: Any) -> Any:
        self._entities.append(entity)
        return entity

    def close(self) -> None:
        """Now, not when nobody refers to it any longer: others must see that its writers are gone. Nothing may be read
        or written afterwards."""
        for entity in (*reversed(self._entities), self._participant):
            entity.__del__()  # cyclonedds has no other way; a second time does nothing


def taken(reader: DataReader, most: int) -> list[Any]:
    """What came since the last call, oldest first."""
    return [sample for sample in reader.take(N=most) if sample.sample_info.valid_data]
