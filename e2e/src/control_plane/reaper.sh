# Kills the processes of a cluster and removes its folder once stdin is closed: its owner has closed it or has exited.
#   sh -c reaper.sh reaper FOLDER
trap '' HUP INT TERM

# Nothing is ever written. This returns when the kernel closes the owner's end of the pipe.
read -r _

# After this no component can be recorded, and so none can start.
mv "$1" "$1.ending" || exit 0
cd "$1.ending" || exit 1
rm -f left

# Is pid $1 still the process that started at $2? The id may have been reused. A zombie does not run.
runs() {
    read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
    set -- "$2" ${stat##*) }
    [ "$2" != Z ] && [ "$2" != X ] && [ "${21}" = "$1" ]
}

while read -r pid start; do
    runs "$pid" "$start" && kill -KILL "$pid"
done <pids

# A process that is being killed may still hold or create files.
while read -r pid start; do
    tries=100
    while runs "$pid" "$start" && [ $tries -gt 0 ]; do
        tries=$((tries - 1))
        sleep 0.05
    done
    [ $tries -gt 0 ] || echo "process $pid, which does not end" >>left
done <pids

# The control groups of nodes are below one named after the folder. They cannot be removed before their last process has
# exited, so this also waits for processes that the kernel kills with a node's first process.
name=${1##*/}
tries=200
while [ $tries -gt 0 ]; do
    left=
    for group in /sys/fs/cgroup/nodekeeper-"${name%%.*}" /sys/fs/cgroup/*/nodekeeper-"${name%%.*}"; do
        [ -d "$group" ] || continue
        find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
        [ -d "$group" ] && left="$left $group"
    done
    [ "$left" ] || break
    tries=$((tries - 1))
    sleep 0.05
done
for group in $left; do
    echo "control group $group, with processes$(find "$group" -name cgroup.procs -exec sed 's/^/ /' {} + | tr -d '\n')"
done >>left
# While they exist, the folder is kept with what could not be killed: the next start tries again.
[ -s left ] && exit 1

cd / && rm -rf "$1.ending"
