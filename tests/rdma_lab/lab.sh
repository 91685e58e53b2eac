#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real RDMA verbs without hardware: small QEMU guests (software emulation) with soft-RoCE NICs.
#   lab.sh build                       installs the tools, fetches Debian's kernel, makes the initial RAM disk; once, half a minute
#   lab.sh found                       whether that is done; else says in one line what is missing, and fails
#   lab.sh run [-H hosts] [-n nics] [-c cpus] [-m MiB] [-t seconds] -- COMMAND...
# COMMAND runs as root in every guest, in the current folder, with LAB_HOST=1..hosts, LAB_NICS=nics, LAB_OUT=/lab-out.
# A guest sees this machine's root file system read-only under a throw-away overlay, and /lab-out read-write: $LAB_DIR here.
# NIC i of host h is eth$i (10.9.$i.$h/24) with RDMA device rxe$i; one host alone gets dummy interfaces.
# Guests have netem, so loss, delay and rate can be set with tc; `ip link set eth1 down` makes queue pairs fail as a cut does.
# Prints each host's output. Exit status: the first host's that is not 0, or 124 after the time limit.
set -euo pipefail
cache=${LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/jhetcc-rdma-lab}
modules="virtio_pci virtio_net 9pnet_virtio 9p overlay veth dummy crc32_generic rdma_rxe ib_uverbs rdma_ucm sch_netem sch_tbf sch_htb"

# One line, and no error: who cannot have the lab goes without.
without() {
  echo "RDMA lab: $1: its tests are skipped"
  exit 0
}

found() {
  [ -e "$cache/vmlinuz" ] && command -v qemu-system-x86_64 > /dev/null && return 0
  echo "RDMA lab: no kernel in $cache, or no QEMU: tests/rdma_lab/lab.sh build" && return 1
}

build() {
  found > /dev/null && exit 0
  [ "$(uname -m)" = x86_64 ] || without "it needs an x86-64 machine"
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || without "not root, or no apt-get, to install QEMU"
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 cpio \
    busybox-static kmod iproute2 rdma-core ibverbs-providers libibverbs1 libibverbs-dev) > /dev/null 2>&1 ||
    without "apt-get could not install QEMU"
  mkdir -p "$cache" && cd "$cache"
  local package; package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/{print $2; exit}')
  rm -rf kernel ram ./*.deb
  (apt-get download -qq "$package") > /dev/null 2>&1 || without "apt-get could not fetch a kernel"
  dpkg-deb -x "$package"_*.deb kernel && rm -f ./*.deb
  local release; release=$(basename kernel/boot/vmlinuz-*); release=${release#vmlinuz-}
  local tree=kernel; [ -d kernel/lib/modules ] || tree=kernel/usr
  depmod -b "$tree" "$release" 2>/dev/null || true
  mkdir -p ram/{bin,proc,sys,dev,host,rw,root,lib/modules}
  cp /bin/busybox ram/bin/
  local module file
  for module in $modules; do
    modprobe -d "$tree" -S "$release" --show-depends "$module" 2>/dev/null | awk '/^insmod/{print $2}'
  done | awk '!seen[$0]++' > order
  while read -r file; do cp "$file" ram/lib/modules/; basename "$file"; done < order > ram/lib/modules/order
  cat > ram/init <<'INIT'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
while read module; do $B insmod /lib/modules/$module 2>/dev/null || echo "lab: no module $module"; done < /lib/modules/order
options=trans=virtio,version=9p2000.L,msize=1048576
$B mount -t 9p -o ro,cache=loose,$options root /host && $B mount -t tmpfs tmpfs /rw && $B mkdir -p /rw/upper /rw/work
$B mount -t overlay overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work /root || echo "lab: no root"
$B mkdir -p /root/lab-out /root/dev /root/proc /root/sys
$B mount -t proc proc /root/proc; $B mount -t sysfs sys /root/sys; $B mount -t devtmpfs dev /root/dev
$B mkdir -p /root/dev/shm /root/dev/pts; $B mount -t tmpfs tmpfs /root/dev/shm
$B mount -t 9p -o $options out /root/lab-out
$B chroot /root /bin/bash /lab-out/guest.sh $($B sed 's/.*lab_host=\([0-9]*\).*/\1/' /proc/cmdline)
$B sync; $B poweroff -f
INIT
  chmod +x ram/init
  (cd ram && find . | cpio -o -H newc --quiet | gzip -1) > ram.gz
  cp "kernel/boot/vmlinuz-$release" vmlinuz && rm -rf kernel ram order
  echo "lab: built for Linux $release in $cache"
}

run() {
  local hosts=1 nics=2 cpus=1 memory=2048 limit=120 option
  while getopts "H:n:c:m:t:" option; do case $option in
    H) hosts=$OPTARG;; n) nics=$OPTARG;; c) cpus=$OPTARG;; m) memory=$OPTARG;; t) limit=$OPTARG;; *) exit 2;; esac; done
  shift $((OPTIND - 1)); [ "${1:-}" = -- ] && shift
  [ $# -gt 0 ] || { echo "lab: no command" >&2; exit 2; }
  [ "$hosts" -le 2 ] || { echo "lab: one or two hosts" >&2; exit 2; }
  [ -f "$cache/vmlinuz" ] || { echo "lab: run '$0 build' first" >&2; exit 2; }
  local out=${LAB_DIR:-}; [ -n "$out" ] || out=$(mktemp -d /var/tmp/lab-out.XXXXXX)
  local pids=() host nic
  { echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LAB_HOST=$1 LAB_OUT=/lab-out'
    echo "export LAB_NICS=$nics"; echo 'ulimit -l unlimited; ip link set lo up'
    echo 'for ((i = 0; i < LAB_NICS; i++)); do'
    [ "$hosts" -gt 1 ] || echo '  ip link add eth$i type dummy'
    echo '  ip addr add 10.9.$i.$1/24 dev eth$i; ip link set eth$i up; rdma link add rxe$i type rxe netdev eth$i; done'
    printf 'cd %q\n' "$PWD"; printf '%q ' "$@"; echo '>/lab-out/host$1.log 2>&1 </dev/null; echo $? >/lab-out/host$1.status'
  } > "$out/guest.sh"
  local base=$((20000 + RANDOM % 20000))
  for ((host = 1; host <= hosts; host++)); do
    local net=(-nic none)
    if [ "$hosts" -gt 1 ]; then for ((nic = 0; nic < nics; nic++)); do
      local way=listen; [ "$host" -eq 1 ] || way=connect
      net+=(-netdev "socket,id=n$nic,$way=127.0.0.1:$((base + nic))"
            -device "virtio-net-pci,netdev=n$nic,romfile=,mac=52:54:00:00:0$nic:0$host"); done; fi
    timeout -k 2 "$limit" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" -nographic \
      -no-reboot -kernel "$cache/vmlinuz" -initrd "$cache/ram.gz" -append "console=ttyS0 panic=-1 quiet lab_host=$host" \
      -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
      -virtfs "local,path=$out,mount_tag=out,security_model=none" "${net[@]}" >"$out/console$host.log" 2>&1 </dev/null &
    pids+=($!); sleep 0.5
  done
  trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
  for host in "${!pids[@]}"; do wait "${pids[$host]}" || true; done
  for ((host = 1; host <= hosts; host++)); do echo "--- host $host"; cat "$out/host$host.log" 2>/dev/null || tail -5 "$out/console$host.log"; done
  local status=0
  for ((host = hosts; host >= 1; host--)); do
    local each; each=$(cat "$out/host$host.status" 2> /dev/null || echo 124)
    [ "$each" = 0 ] || status=$each
  done
  echo "lab: status $status, files in $out"; exit "$status"
}

case ${1:-} in build) build;; found) found;; run) shift; run "$@";; *) sed -n '2,12p' "$0"; exit 2;; esac
