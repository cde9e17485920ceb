# The first process of a node: sets up its namespaces and starts its programs.
#   unshare --mount --pid --uts --ipc --fork sh -c init.sh init
# with NAME, ADDRESS, ZONE and PODS; FOLDER, its own; IMAGES and LOGS, the cluster's; CGROUP; KUBELET and KUBE_PROXY.
set -e

echo 0 >"$CGROUP/cgroup.procs"
mount -t proc proc /proc
echo "$NAME" >/proc/sys/kernel/hostname

# Everything is below the node's own /run, with the same names on every node. It is assembled elsewhere first, because
# its parts may be below the /run that it hides.
new=$FOLDER/run
mount -t tmpfs -o mode=755 tmpfs "$new"
mkdir "$new/node" "$new/bin" "$new/images" "$new/logs" "$new/sysctl" "$new/cgroup" "$new/lock" "$new/tmp"
mount --bind "$FOLDER" "$new/node"
mount --bind "$IMAGES" "$new/images"
mount --bind "$LOGS" "$new/logs"
touch "$new/bin/kubelet" "$new/bin/kube-proxy"
mount --bind "$KUBELET" "$new/bin/kubelet"
mount --bind "$KUBE_PROXY" "$new/bin/kube-proxy"
cd /
# No table of these mounts is kept below /run.
mount --no-mtab --move "$new" /run
export TMPDIR=/run/tmp

# The node's network devices, and the machine's control groups.
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l /run/cgroup

# Nothing is written to the machine.
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir -p /var/lib/kubelet /var/lib/dbus
mount --bind /run/node/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind /run/node/pod-logs /var/log

# Each boot has a new boot id.
cat /proc/sys/kernel/random/uuid >/run/boot-id
mount --bind /run/boot-id /proc/sys/kernel/random/boot_id
cp /run/node/machine-id /var/lib/dbus/machine-id
[ ! -e /etc/machine-id ] || mount --bind /run/node/machine-id /etc/machine-id

# A kubelet sets these for the whole machine unless they have the wanted value.
pretend() {
    file=/run/sysctl/$(echo "$1" | tr / _)
    echo "$2" >"$file"
    mount --bind "$file" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend vm/panic_on_oom 0
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
pretend kernel/keys/root_maxkeys 1000000
pretend kernel/keys/root_maxbytes 25000000

# Restarts a program whenever it exits, like a service manager.
keep() {
    log=/run/logs/$NAME-$1.log
    shift
    while :; do
        "$@" >>"$log" 2>&1 </dev/null || echo "ended with $?, starts again" >>"$log"
        sleep 1
    done
}

keep containerd containerd --config /run/node/containerd.toml &
tries=300
until ctr version >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo "containerd does not answer" >&2; exit 1; }
    sleep 0.1
done
for image in /run/images/*.tar; do
    imported=/run/node/imported/${image##*/}
    [ -e "$imported" ] || { ctr --namespace k8s.io images import "$image" && touch "$imported"; }
done

keep kubelet /run/bin/kubelet --config=/run/node/kubelet.json --kubeconfig=/run/node/kubeconfig \
    --hostname-override="$NAME" --node-ip="$ADDRESS" --node-labels="topology.kubernetes.io/zone=$ZONE" \
    --root-dir=/var/lib/kubelet --v=2 &
# Without connection limits of its own: those belong to the machine.
keep kube-proxy /run/bin/kube-proxy --kubeconfig=/run/node/kube-proxy.kubeconfig --hostname-override="$NAME" \
    --proxy-mode=nftables --cluster-cidr="$PODS" --conntrack-max-per-core=0 \
    --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s \
    --metrics-bind-address=127.0.0.1:10249 --healthz-bind-address=127.0.0.1:10256 --v=2 &

# Also reaps orphans.
wait
