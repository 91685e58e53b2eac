# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces joined by several links of given rates: two hosts with so many NICs each. Ends with the bench."""

from shaped_network import MTU, Network, token_bucket


class Rails(Network):
    """NIC k of host h is ``nic<k>`` with the address 10.88.k.h+1.

    Args:
      rates: Mbit/s each way, one a link.
      hosts: namespaces; every two neighbours are joined so, and no others.

    Raises:
      OSError: not root, no such tools, or the kernel refuses.
    """

    def __init__(self, rates):
        super().__init__(2, [])
        self.rates = list(rates)
        try:
            for number, mbit in enumerate(rates):
                self._link(number, mbit)
        except OSError:
            self.close()
            raise

    def _link(self, number, mbit):
        name = f"nic{number}"
        self.do(0, f"ip link add {name} type veth peer name {name} netns {self.pid(1)}")
        for host in (0, 1):
            self.do(
                host,
                f"ip link set {name} mtu {MTU} up && ip address add {self.nic_address(host, number)}/24 dev {name}",
            )
            self.do(host, f"tc qdisc add dev {name} root {token_bucket(mbit)}")

    @staticmethod
    def nic_address(host, number):
        return f"10.88.{number}.{host + 1}"

    def set_rate(self, number, mbit):
        """From now on, both ways."""
        for host in (0, 1):
            self.do(host, f"tc qdisc change dev nic{number} root {token_bucket(mbit)}")

    def down(self, host, number):
        """The link is taken down at one host; the system tells both."""
        self.do(host, f"ip link set nic{number} down")

    def up(self, host, number):
        self.do(host, f"ip link set nic{number} up")

    def swallow(self, host, number, both_ways=True):
        """From now on the link loses what this host sends, or both do, and nobody is told."""
        for one in (0, 1) if both_ways else (host,):
            self.do(one, f"tc qdisc change dev nic{number} root {token_bucket(self.rates[number], limit=1)}")

    def pass_again(self, host, number):
        for one in (0, 1):
            self.do(one, f"tc qdisc change dev nic{number} root {token_bucket(self.rates[number])}")
