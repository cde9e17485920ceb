# Imports an image on a running node, and returns when pods can use it.
#   sh -c import.sh import FILE IMAGE
until_true() {
    tries=300
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo "waited 30 s for: $*" >&2; exit 1; }
        sleep 0.1
    done
}

# Before the node has its own /run, this may be the machine's containerd.
containerd_answers() { [ -d /run/node ] && ctr version; }
# containerd's CRI plugin learns of an image by an event.
pods_can_use_it() { ctr --namespace k8s.io images ls "name==$1" | grep io.cri-containerd.image=managed; }

until_true containerd_answers
ctr --namespace k8s.io images import "/run/images/$1" || exit 1
touch "/run/node/imported/$1"
until_true pods_can_use_it "$2"
