# SPDX-License-Identifier: Apache-2.0
"""This host, from an imagined sysfs and stand-ins for the vendors' libraries; each library absent or broken does no harm."""

import types

import pytest
from trees import Tree, server

from jhetcc import topology as topo
from jhetcc.topology import Seen, discover, sysfs, vendors

ALL = [Seen("cuda")] * 2 + [Seen("rocm")] * 2


def nothing(name):
    raise ImportError(f"No module named {name!r}")


def only(**modules):
    """Imports these and nothing else; a dot in a name is written as two underscores."""
    known = {name.replace("__", "."): module for name, module in modules.items()}
    return lambda name: known[name] if name in known else nothing(name)


def why(topology, what):
    return next(each.why for each in topology.unknown if each.what == what)


def test_a_server_of_two_vendors(tmp_path):
    found = discover(server(tmp_path).root, ALL, name="h", load=nothing)
    host = found.hosts[0]
    assert host.sockets == (topo.Socket(0, "0-7"), topo.Socket(1, "8-15"))
    assert [(d.name, d.vendor, d.socket, d.pci.rpartition("/")[2]) for d in host.devices] == [
        ("gpu0", "nvidia", 0, "0000:13:00.0"),
        ("gpu1", "nvidia", 0, "0000:14:00.0"),
        ("gpu2", "amd", 1, "0000:a3:00.0"),
        ("gpu3", "amd", 1, "0000:a4:00.0"),
    ]
    assert host.devices[0].pci == "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"
    assert [(n.name, n.kind, n.rdma, n.socket, n.gbit_per_s, n.is_up) for n in host.nics] == [
        ("eno1", "ethernet", "", 0, 1.0, True),
        ("ens0", "ethernet", "mlx5_0", 0, 200.0, True),
        ("ens1", "ethernet", "mlx5_1", 1, 200.0, True),
    ]
    assert [(c.nic, c.distance) for c in topo.choose_nics(host)] == [("ens0", "PIX")] * 2 + [("ens1", "PIX")] * 2
    assert [(c.vendor, c.ranks) for c in found.clusters] == [("nvidia", (0, 1)), ("amd", (2, 3))]
    assert "loopback" in why(found, "interface lo")
    assert topo.loads(topo.dumps(found)) == found


def test_every_absent_library_is_named_with_its_package(tmp_path):
    found = discover(server(tmp_path).root, None, load=nothing)
    told = {each.what: each.why for each in found.unknown}
    for what, package in (
        ("CUDA devices", "cupy"),
        ("HIP devices", "hip-python"),
        ("NVLinks", "nvidia-ml-py"),
        ("addresses of NICs", "pyroute2"),
        ("rates of RDMA ports", "pyverbs"),
    ):
        assert told[what].startswith(f"{package} is not installed") and "No module named" in told[what]
    assert "JAX was not asked" in told["JAX's devices"]


def test_a_broken_library_does_no_harm(tmp_path):
    class NVMLError(Exception):
        pass

    def fail():
        raise NVMLError("Driver Not Loaded")

    found = discover(server(tmp_path).root, [], load=only(pynvml=types.SimpleNamespace(nvmlInit=fail)))
    assert why(found, "NVLinks") == "nvidia-ml-py: NVMLError: Driver Not Loaded"
    assert len(found.hosts[0].devices) == 4


def test_an_empty_machine(tmp_path):
    found = discover(tmp_path, [], load=nothing)
    assert found.size == 0 and found.hosts[0].sockets == (topo.Socket(0),) and found.hosts[0].nics == ()
    told = {each.what for each in found.unknown}
    assert {"NUMA nodes", "accelerators on PCIe", "NICs"} <= told


def test_a_host_name_that_is_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Anna's laptop")
    assert discover(tmp_path, None, load=nothing).hosts[0].name == "Anna-s-laptop"


def test_this_machine_can_be_asked():
    found = discover(seen=[Seen("cpu", "cpu")], load=nothing)
    assert found.hosts[0].devices[-1].vendor == "cpu" and topo.loads(topo.dumps(found)) == found


# -- JAX's list
def test_cpu_devices_take_part_where_there_is_nothing_else(tmp_path):
    found = discover(tmp_path, [Seen("cpu", "cpu")] * 3, label="left", load=nothing)
    assert [device.name for device in found.hosts[0].devices] == ["cpu0", "cpu1", "cpu2"]
    assert [(c.name, c.ranks) for c in found.clusters] == [("left", (0, 1, 2))]
    both = discover(server(tmp_path / "s").root, [Seen("cpu"), *[Seen("cuda")] * 2, *[Seen("rocm")] * 2], load=nothing)
    assert both.size == 4 and len(both.hosts[0].devices) == 5


def test_devices_that_only_jax_sees(tmp_path):
    found = discover(tmp_path, [Seen("cuda", "NVIDIA H200"), Seen("rocm"), Seen("cpu")], load=nothing)
    assert [(d.name, d.vendor, d.model) for d in found.hosts[0].devices] == [
        ("cpu0", "cpu", ""),
        ("gpu0", "nvidia", "NVIDIA H200"),
        ("gpu1", "amd", ""),
    ]
    assert "sysfs does not" in why(found, "place of gpu0")
    assert found.size == 2


def test_devices_that_jax_does_not_see_are_noted(tmp_path):
    found = discover(server(tmp_path).root, [Seen("cuda")], load=nothing)
    assert "JAX sees 1 of 2" in why(found, "nvidia devices")
    assert "JAX sees none of 2: they take no part" in why(found, "amd devices")
    assert [rank.device for rank in found.ranks] == ["gpu0", "gpu1"]


def test_who_takes_part(tmp_path):
    """A display adapter that JAX has no backend for is a device, but no rank."""
    root = server(tmp_path).root
    assert [rank.device for rank in discover(root, None, load=nothing).ranks] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert [rank.device for rank in discover(root, [Seen("cpu")], load=nothing).ranks] == ["cpu0"]
    assert [rank.device for rank in discover(root, [Seen("cpu"), *[Seen("rocm")] * 2], load=nothing).ranks] == [
        "gpu2",
        "gpu3",
    ]


# -- NICs
def test_interfaces_that_lead_nowhere_are_left_out_and_said(tmp_path):
    tree = Tree(tmp_path)
    tree.interface("docker0", bridge="")
    tree.interface("veth1", master="")
    tree.interface("dummy0", state="down")
    tree.interface("tun0", kind=65534)
    tree.interface("wan#1")
    tree.interface("eth0")
    found = discover(tree.root, [], load=nothing)
    assert [(nic.name, nic.kind, nic.pci) for nic in found.hosts[0].nics] == [("eth0", "virtual", "")]
    for name, reason in (
        ("docker0", "a bridge"),
        ("veth1", "a part of"),
        ("dummy0", "virtual, and down"),
        ("tun0", "65534"),
        ("wan#1", "no such names"),
    ):
        assert reason in why(found, f"interface {name}")
    assert "neither its driver" in why(found, "rate of eth0")


def test_people_count_interfaces(tmp_path):
    tree = Tree(tmp_path)
    for number in (10, 2, 1):
        tree.interface(
            f"eth{number}", tree.function(f"pci0000:00/0000:00:{number:02x}.0", "0x1af4", "0x020000"), speed=10000
        )
    assert [nic.name for nic in sysfs.nics(tree.root, (), [])] == ["eth1", "eth2", "eth10"]


def test_verbs_devices_without_an_interface_and_on_top_of_one(tmp_path):
    tree = Tree(tmp_path)
    tree.verbs("mlx5_7", tree.function("pci0000:00/0000:00:05.0", "0x15b3", "0x020700"), rate="400 Gb/sec (4X NDR)")
    tree.verbs("mlx5_8", tree.function("pci0000:00/0000:00:06.0", "0x15b3", "0x020700"), state="1: DOWN")
    tree.interface("eth0", tree.function("pci0000:00/0000:00:03.0", "0x1af4", "0x020000"), speed=-1)
    tree.verbs("rxe0", None, rate="2.5 Gb/sec (1X SDR)", parent="eth0")
    found = {nic.name: nic for nic in sysfs.nics(tree.root, (topo.Socket(0),), [])}
    assert (found["eth0"].rdma, found["eth0"].gbit_per_s) == ("rxe0", 2.5)
    assert (found["mlx5_7"].kind, found["mlx5_7"].gbit_per_s, found["mlx5_7"].is_up) == ("infiniband", 400.0, True)
    assert not found["mlx5_8"].is_up and found["mlx5_8"].pci == "pci0000:00/0000:00:06.0"


def test_a_numa_node_that_is_not_there_is_unknown(tmp_path):
    tree = Tree(tmp_path)
    tree.function("pci0000:00/0000:00:03.0", "0x10de", "0x030200", node=-1)
    tree.function("pci0000:00/0000:00:04.0", "0x10de", "0x030200", node=5)
    assert [d.socket for d in sysfs.accelerators(tree.root, (topo.Socket(0),), [])] == [None, None]


def test_a_bridge_below_a_bridge_of_another_domain(tmp_path):
    tree = Tree(tmp_path)
    tree.function("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0", "0x10de", "0x030200")
    device = sysfs.accelerators(tree.root, (), [])[0]
    assert device.pci == "pci0000:00/0000:00:0e.0/10000:e0:01.0/10000:e1:00.0"


def test_devices_are_in_the_order_of_their_hexadecimal_addresses(tmp_path):
    tree = Tree(tmp_path)
    for bus in ("9a", "17", "b1", "1a"):
        tree.function(f"pci0000:{bus}/0000:{bus}:00.0", "0x10de", "0x030200")
    found = sysfs.accelerators(tree.root, (), [])
    assert [device.pci[5 + 3 :][:2] for device in found] == ["17", "1a", "9a", "b1"]


def test_xgmi(tmp_path):
    tree = Tree(tmp_path)
    for bus in (0x63, 0x64, 0x65):
        tree.function(f"pci0000:60/0000:60:01.0/0000:{bus:02x}:00.0", "0x1002", "0x120000")
    tree.kfd(0, 0, [(1, 2, 0)])  # the host's CPUs, by PCIe
    tree.kfd(1, 0x6300, [(2, 11, 50000), (0, 2, 0)])
    tree.kfd(2, 0x6400, [(1, 11, 50000)])
    tree.kfd(3, 0x6500, [(1, 2, 0)])
    devices = sysfs.accelerators(tree.root, (), [])
    assert sysfs.xgmi(tree.root, devices) == [topo.Link("gpu0", "gpu1", "XGMI", 400.0)]


# -- stand-ins for libraries
class Nvml:
    """nvidia-ml-py with devices at these addresses; links are (address, count) by device."""

    class NVMLError(Exception):
        pass

    def __init__(self, links):
        self.links, self.is_open = links, False

    def nvmlInit(self):
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlDeviceGetCount(self):
        assert self.is_open
        return len(self.links)

    def nvmlDeviceGetHandleByIndex(self, index):
        return list(self.links)[index]

    def nvmlDeviceGetPciInfo(self, handle):
        return types.SimpleNamespace(busId=f"0000{handle.upper()}".encode())

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=141 << 30)

    def _ends(self, handle):
        return [end for end, count in self.links[handle] for _ in range(count)]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= len(self._ends(handle)) + 1:
            raise self.NVMLError("Invalid Argument")
        return int(link < len(self._ends(handle)))  # the last one is there, but idle

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return types.SimpleNamespace(busId=f"0000{self._ends(handle)[link]}")


def test_nvml(tmp_path):
    lib = Nvml({"0000:13:00.0": [("0000:14:00.0", 4)], "0000:14:00.0": [("0000:13:00.0", 4)]})
    found = discover(server(tmp_path).root, [], load=only(pynvml=lib))
    host = found.hosts[0]
    assert (host.devices[0].model, host.devices[0].memory_bytes) == ("NVIDIA H200", 141 << 30)
    assert host.links == (topo.Link("gpu0", "gpu1", "NV4"),)
    assert not lib.is_open


def test_nvlinks_to_a_switch_join_all(tmp_path):
    lib = Nvml({"0000:13:00.0": [("0000:99:00.0", 6), ("0000:9a:00.0", 6)], "0000:14:00.0": [("0000:99:00.0", 8)]})
    assert discover(server(tmp_path).root, [], load=only(pynvml=lib)).hosts[0].links == (
        topo.Link("gpu0", "gpu1", "NV8"),
    )
    lib = Nvml({"0000:13:00.0": [], "0000:14:00.0": [("0000:99:00.0", 8)]})
    assert discover(server(tmp_path / "b").root, [], load=only(pynvml=lib)).hosts[0].links == ()


def test_a_device_that_sysfs_does_not_show(tmp_path):
    found = discover(tmp_path, [], load=only(pynvml=Nvml({"0000:13:00.0": []})))
    assert [(d.name, d.vendor, d.pci) for d in found.hosts[0].devices] == [("gpu0", "nvidia", "")]
    assert "sysfs does not" in why(found, "place of gpu0")


def test_cupy():
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda index: {"name": b"NVIDIA H200", "totalGlobalMem": 7},
        deviceGetPCIBusId=lambda index: "0000:13:00.0",
    )
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    assert vendors.cuda(only(cupy=cupy)) == [vendors.Accelerator("nvidia", "0000:13:00.0", "NVIDIA H200", 7)]


def hip(answer=0):
    class hipDeviceProp_t:
        pass

    def properties(about, index):
        about.name, about.totalGlobalMem = b"AMD Instinct MI300X", 9
        about.pciDomainID, about.pciBusID, about.pciDeviceID = 1, 0xA3, 0
        return (answer,)

    error = types.SimpleNamespace(hipSuccess=0)
    lib = types.SimpleNamespace(
        hipError_t=error,
        hipGetDeviceCount=lambda: (0, 1),
        hipDeviceProp_t=hipDeviceProp_t,
        hipGetDeviceProperties=properties,
    )
    return types.SimpleNamespace(hip=lib)


def test_hip_python():
    assert vendors.hip(only(hip=hip())) == [vendors.Accelerator("amd", "0001:a3:00.0", "AMD Instinct MI300X", 9)]
    with pytest.raises(RuntimeError, match="100"):
        vendors.hip(only(hip=hip(100)))


class Closing:
    """A context manager that is entered before use."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_pyverbs_fills_in_what_sysfs_does_not_say(tmp_path):
    port = types.SimpleNamespace(state=4, active_width=2, active_speed=64)
    lib = types.SimpleNamespace(
        get_device_list=lambda: [types.SimpleNamespace(name=b"mlx5_7")],
        Context=lambda name: Closing(query_port=lambda number: port),
    )
    tree = Tree(tmp_path)
    tree.verbs("mlx5_7", tree.function("pci0000:00/0000:00:05.0", "0x15b3", "0x020700"), rate="", state="")
    found = discover(tree.root, [], load=only(pyverbs__device=lib)).hosts[0].nics[0]
    assert (found.gbit_per_s, found.is_up) == (200.0, True)
    port.state, port.active_speed = 1, 3
    assert vendors.verbs(only(pyverbs__device=lib)) == [vendors.Port("mlx5_7", False, None)]


class Message(dict):
    def get_attr(self, name):
        return self["attrs"].get(name)


def pyroute2(links, addresses, speeds):
    def mode(name):
        if speeds.get(name) is None:
            raise OSError(95, "Operation not supported")
        return types.SimpleNamespace(speed=speeds[name])

    route = Closing(
        get_links=lambda: [
            Message(index=k, attrs={"IFLA_IFNAME": n, "IFLA_OPERSTATE": s}) for k, (n, s) in enumerate(links)
        ],
        get_addr=lambda: [Message(index=k, family=f, scope=s, attrs={"IFA_ADDRESS": a}) for k, f, s, a in addresses],
    )
    return types.SimpleNamespace(IPRoute=lambda: route, Ethtool=lambda: Closing(get_link_mode=mode))


def test_pyroute2(tmp_path):
    tree = Tree(tmp_path)
    for k, name in enumerate(("eth0", "eth1", "eth2")):
        tree.interface(name, tree.function(f"pci0000:00/0000:00:0{k}.0", "0x1af4", "0x020000"))
    addresses = [
        (0, 10, 253, "fe80::1"),
        (0, 2, 253, "169.254.0.1"),
        (0, 10, 0, "2001:db8::2"),
        (0, 2, 0, "203.0.113.1"),
        (1, 10, 253, "fe80::2"),
    ]
    lib = pyroute2([("eth0", "UP"), ("eth1", "DOWN")], addresses, {"eth0": 25000})
    found = discover(tree.root, [], load=only(pyroute2=lib))
    assert [(n.name, n.address, n.gbit_per_s, n.is_up) for n in found.hosts[0].nics] == [
        ("eth0", "203.0.113.1", 25.0, True),
        ("eth1", "fe80::2", None, False),
        ("eth2", "", None, True),
    ]
