"""Addresses and network interfaces of this machine."""

import ipaddress
import socket
from collections.abc import Iterable


def addresses() -> dict[str, str]:
    """Return the IPv4 addresses of this machine that others can reach, and the interface of each."""
    import psutil

    found = {}
    for interface, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET and not is_local(entry.address):
                found[entry.address] = interface
    return found


def is_local(address: str) -> bool:
    """Return whether other machines cannot connect to this address: loopback, or not assigned by a network."""
    found = ipaddress.ip_address(address)
    return found.is_loopback or found.is_link_local or found.is_unspecified


def host_address() -> str | None:
    """Return the IPv4 address that the name of this machine resolves to here; None if it does not resolve."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def interface_towards(peers: Iterable[str]) -> str | None:
    """Return the network interface through which the first reachable peer, an address, is reached; None if none is."""
    own = addresses()
    for peer in peers:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            try:
                connection.connect((peer, 9))  # sends nothing
            except OSError:  # no route
                continue
            if interface := own.get(connection.getsockname()[0]):
                return interface
    return None
