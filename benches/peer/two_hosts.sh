#!/bin/sh
# Two hosts on this machine for measurements over a link: network namespaces with names and shared memory of
# their own, a core each, joined by a link of a limited rate. Takes root.
#
#   two_hosts.sh up [RATE]         make them (RATE as tc has it, 1gbit unless told)
#   two_hosts.sh down              remove them
#   two_hosts.sh on HOST WORD...   run a command on one of them (slpeera, slpeerb), as ssh would
set -eu
case "$1" in
  up)
    for host in slpeera slpeerb; do
      ip netns add $host
      mkdir -p /etc/netns/$host
      printf '127.0.0.1 localhost\n10.78.0.1 slpeera\n10.78.0.2 slpeerb\n' > /etc/netns/$host/hosts
      ip -n $host link set lo up
    done
    ip link add wire netns slpeera type veth peer name wire netns slpeerb
    number=1
    for host in slpeera slpeerb; do
      ip -n $host addr add 10.78.0.$number/24 dev wire
      ip -n $host link set wire up
      tc -n $host qdisc add dev wire root tbf rate "${2:-1gbit}" burst 256kb latency 50ms
      number=$((number + 1))
    done
    ;;
  down)
    for host in slpeera slpeerb; do
      ip netns del $host
      rm -r /etc/netns/$host
    done
    ;;
  on)
    host=$2
    shift 2
    core=0
    [ "$host" = slpeerb ] && core=$(($(nproc --all) - 1))
    exec taskset -c $core ip netns exec "$host" unshare --uts --ipc --mount sh -c \
      "hostname $host; mount -t tmpfs none /dev/shm; $*"
    ;;
  *)
    # As mpirun calls what stands for ssh: HOST WORD...
    exec "$0" on "$@"
    ;;
esac
