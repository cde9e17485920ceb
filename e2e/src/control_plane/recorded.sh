# Records its process id as "PID START" and then becomes the command, which so never runs unrecorded.
#   sh -c recorded.sh recorded PIDS COMMAND [ARGUMENT...]
pids=$1
shift
read -r stat <"/proc/$$/stat" || exit 1
start=$(set -- ${stat##*) } && echo "${20}")
echo "$$ $start" >>"$pids" && exec "$@"
