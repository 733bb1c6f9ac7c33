#!/usr/bin/env bash
# `make demo`: three pods on two nodes, in namespaces of their own on this machine, start to end.
# KEEP=1 leaves everything up and says how to enter it. tests/demo/steps.sh holds the steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH="$PWD/target/plugin:$PATH:/usr/sbin:/sbin"

# What the demo must leave as it was: links, named namespaces, and the directories a plugin may write to.
machine() {
    ip -o link | cut -d: -f2
    ls /run/netns /var/lib/calico /var/run/calico /etc/cni/net.d 2>&1 || true
}

unshare=(unshare --net --mount --propagation private)
enter=(nsenter --net --mount)
if [ "$(id -u)" != 0 ]; then
    unshare+=(--user --map-root-user)
    enter+=(--user --preserve-credentials)
fi

before=$(machine)
# The namespaces live as long as this process of ours, or as the shell that you leave in them.
"${unshare[@]}" sleep infinity &
holder=$!
[ "${KEEP:-}" = 1 ] || trap 'kill "$holder" 2>/dev/null; wait "$holder" 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$holder/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done

"${enter[@]}" --target "$holder" "$PWD/tests/demo/steps.sh" "${KEEP:-}"

if [ "${KEEP:-}" = 1 ]; then
    disown "$holder"
    cat <<TEXT

It is all still there. Look around with
    ${enter[*]} --target $holder env PATH="$PWD/target/plugin:\$PATH" DATASTORE_TYPE=local DATASTORE_PATH=/run/demo/calico.db bash
    # then: calico-ipam show; ip netns; ip netns exec pod1 ip address; ip netns exec node1 ip route
and take everything away with
    kill $holder
TEXT
    exit
fi

kill "$holder"
wait "$holder" 2>/dev/null || true
trap - EXIT
if [ "$(machine)" = "$before" ]; then
    echo "This machine is as it was before: the same links, namespaces and files."
else
    diff <(echo "$before") <(machine)
fi
