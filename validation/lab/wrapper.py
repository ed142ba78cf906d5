"""The lab runs in a mount, PID and network namespace of its own, so that nothing of it can outlive its first process.

That process is PID 1 in there: when it ends, the kernel kills all others, and with them go the network and every name in /run/netns, which
are seen nowhere else. It is killed in turn when the process that started it dies, however that happened.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from parasim.errors import ParasimError

from .namespaces import NETNS

TOOLS = ("unshare", "setpriv", "ip", "tc", "mount", "sysctl")
NEW = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private")
PREPARE = 'mount -t tmpfs lab /run && mkdir /run/netns && exec "$@"'
PROBE = """
ip link add e0 type veth peer name p0
tc qdisc add dev e0 root handle 1: htb default 99
tc class add dev e0 parent 1: classid 1:1 htb rate 400mbit burst 10kb
tc qdisc add dev e0 parent 1:1 bfifo limit 250000
tc filter add dev e0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:1
ip route add 10.77.0.0/24 dev lo congctl cubic 2>/dev/null || { ip link set lo up; ip route add 10.77.0.0/24 dev lo congctl cubic; }
chrt --rr 5 true
"""
# Torch makes and drops copies of what it gathers: memory that is kept costs less processor time than pages that are given back and asked for again.
KEPT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(64 << 20)}
GRACE = 20.0  # seconds after an interrupt until what is left is killed


class NoLab(ParasimError):
    """This machine cannot lay out a network; the message says what it lacks."""

    exit_code = 4


def lacking() -> str:
    """What this machine lacks for the lab, in words; "" where nothing is missing."""
    if not sys.platform.startswith("linux"):
        return "the lab needs Linux: its network is made of network namespaces"
    if os.geteuid() != 0:
        return "the lab needs root: it makes network namespaces and threads of real-time priority"
    missing = [tool for tool in (*TOOLS, "chrt") if shutil.which(tool) is None]
    if missing:
        return f"the lab needs {', '.join(missing)} (packages iproute2, util-linux, procps)"
    tried = subprocess.run([*NEW, "sh", "-ec", PROBE], capture_output=True, text=True, timeout=GRACE)
    return f"the lab cannot shape a network here: {tried.stderr.strip() or f'exit code {tried.returncode}'}" if tried.returncode else ""


def inside() -> bool:
    """Is this the first process of such namespaces?"""
    return os.getpid() == 1 and NETNS.is_dir()


def contained(argument: str) -> int:
    """Run `python -m validation.lab` with `argument` in there and return its exit code. SIGINT and SIGTERM end it in order, and all at once after GRACE.

    Raises NoLab with the reason where this machine cannot.
    """
    reason = lacking()
    if reason:
        raise NoLab(reason)
    command = ["setpriv", "--pdeathsig", "KILL", *NEW, "sh", "-c", PREPARE, "sh", sys.executable, "-m", "validation.lab", argument]
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, **KEPT})
    before = {number: signal.signal(number, lambda *_: _interrupt(process)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return process.wait()
    finally:
        process.kill()  # and the kernel everything below it
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGINT)
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, GRACE)
