# Tries the operations of a starting node in its own namespaces, and reports which are not possible.
#   unshare --net --mount --pid --uts --ipc --fork sh -c probe.sh
try() {
    what=$1
    shift
    said=$("$@" 2>&1) || { echo "$what: $said"; exit 1; }
}
try "mount a tmpfs" mount -t tmpfs tmpfs /tmp
try "mount proc" mount -t proc proc /proc
try "mount sysfs" mount -t sysfs sysfs /sys
try "make a bridge" ip link add probe type bridge
try "make a pair of network devices" ip link add probe0 type veth peer name probe1
try "use nftables" nft add table inet probe
try "list nftables" nft list ruleset
