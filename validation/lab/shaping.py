"""The commands of `ip` and `tc` that lay out a Network, as text: batches per namespace, in the order in which they must run.

Every port, hosts' and switches' alike, is an HTB class of the cable's rate with fair classes below it: some for every pair of hosts, among which
the connections of a pair are spread by their port numbers. What matters, and was found by trying: classes of their own (TCP flows that share
one queue share it by chance), a burst of one packet (an idle port passes its burst for free), GSO packets of 16 kB (64 kB ones exceed the
burst and are cut in software), and queues of 250 kB (longer ones fill up and make flows late that another port limits; shorter ones drop).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .networks import MTU, Network, Port

GSO = 16000  # bytes of one packet between hosts
BURST = "10kb"  # tc's own unit; one GSO packet passes an idle port anyway
QUANTUM = 64000  # bytes one class may send before the next has its turn
QUEUE = 250000  # bytes: 5 ms at 400 Mbit/s
SYSCTL = {
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_wmem": "4096 65536 65536",  # a send returns when the bytes have gone, not when they are buffered
}
CONGESTION = "cubic"
LOW_BITS = 0x6  # of a TCP port: those by which Linux gives out one after the other; its lowest bit is often the same
FLOWS = tuple((source, target) for source in range(0, LOW_BITS + 1, 2) for target in range(0, LOW_BITS + 1, 2))
FIRST_PAIR, FIRST_FLOW = 0x100, 0x1000  # class ids; 1 is the port, DEFAULT what belongs to no pair (ARP)
DEFAULT = 0x99


class Batch(NamedTuple):
    """Lines for one call of `tool` (ip or tc, `-b -`) in a namespace ("": outside of all)."""

    tool: str
    namespace: str
    lines: tuple[str, ...]


def layout(network: Network, *, shaped: bool = True) -> Iterator[Batch]:
    """All batches: namespaces, bridges, cables, addresses, and (`shaped`) what limits the ports."""
    spaces = [*network.switches, *(h.name for h in network.hosts)]
    yield Batch("ip", "", tuple(f"netns add {name}" for name in spaces))
    for switch in network.switches:
        yield Batch("ip", switch, ("link add br0 type bridge", "link set lo up", "link set br0 up"))
    for cable in network.cables:
        a, b = cable.ends
        yield Batch("ip", a.namespace, (f"link add {a.device} mtu {MTU} type veth peer name {b.device} mtu {MTU} netns {b.namespace}",))
    for port, _ in network.ports:
        if port.namespace in network.switches:
            yield Batch("ip", port.namespace, (f"link set {port.device} master br0", f"link set {port.device} up"))
    for host in network.hosts:
        yield Batch("ip", host.name, _host(host.address))
    if shaped:
        for port, rate in network.ports:
            yield Batch("tc", port.namespace, shaping(port, rate, network))


def _host(address: str) -> tuple[str, ...]:
    return (
        f"link set lo mtu {MTU} up",  # with larger packets a send buffer of 64 kB waits for delayed acknowledgements
        f"link set e0 gso_max_size {GSO}",
        f"addr add {address}/24 dev e0",
        "link set e0 up",
        f"route replace 10.77.0.0/24 dev e0 proto kernel scope link src {address} congctl {CONGESTION}",
    )


def shaping(port: Port, rate: int, network: Network) -> tuple[str, ...]:
    """The tc batch of one port of `rate` bits per second: classes of the flows that leave there, each of which may take all when alone."""
    device, own = port.device, f"burst {BURST} cburst {BURST} quantum {QUANTUM}"
    share = rate // max(len(port.pairs), 1)
    lines = [
        f"qdisc add dev {device} root handle 1: htb default {DEFAULT:x}",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit {own}",
        f"class add dev {device} parent 1:1 classid 1:{DEFAULT:x} htb rate 1mbit ceil {rate}bit {own}",
    ]
    for k, (i, j) in enumerate(port.pairs):
        pair, ends = f"1:{FIRST_PAIR + k:x}", f"match ip src {network.hosts[i].address}/32 match ip dst {network.hosts[j].address}/32"
        lines.append(f"class add dev {device} parent 1:1 classid {pair} htb rate {share}bit ceil {rate}bit {own}")
        for n, (source, target) in enumerate(FLOWS, FIRST_FLOW + k * len(FLOWS)):
            ports = f"match ip sport {source:#x} {LOW_BITS:#x} match ip dport {target:#x} {LOW_BITS:#x}"
            lines += [
                f"class add dev {device} parent {pair} classid 1:{n:x} htb rate {max(share // len(FLOWS), 1)}bit ceil {rate}bit {own}",
                f"qdisc add dev {device} parent 1:{n:x} bfifo limit {QUEUE}",
                f"filter add dev {device} parent 1: protocol ip prio 1 u32 {ends} {ports} flowid 1:{n:x}",
            ]
    return tuple(lines)
