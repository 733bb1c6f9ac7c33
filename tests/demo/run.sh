#!/usr/bin/env bash
# `make demo`: three pods on two nodes, in private namespaces on this machine, from start to end.
# `make demo-kubernetes` (run.sh kubernetes): two pods of a real API server.
# `make demo-controllers` (run.sh controllers): the work of kube-controllers for pods, policies and nodes.
# KEEP=1 leaves everything running and prints how to enter it. steps.sh, kubernetes/ and controllers/ contain the steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
steps=$PWD/tests/demo/${1:+$1/}steps.sh
programs=$PWD/target/plugin:$(tests/install-go-tools.sh --path)
export PATH="$programs:$PATH:/usr/sbin:/sbin"

# Lists the links, named namespaces and plugin directories, which the demo must not change on this machine.
machine() {
    ip -o link | cut -d: -f2
    ls /run/netns /var/lib/calico /var/run/calico /etc/cni/net.d 2>&1 || true
}

# A private PID namespace: all of its processes end with the first one.
unshare=(unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc)
enter=(nsenter --net --mount --pid)
if [ "$(id -u)" != 0 ]; then
    unshare+=(--user --map-root-user)
    enter+=(--user --preserve-credentials)
fi

# Fails here, with a message, if this machine does not allow namespaces. The process below must not keep our stdout
# open, so its errors would be lost.
"${unshare[@]}" true
before=$(machine)
# The namespaces exist as long as this process, or as the shell that you leave running in them.
"${unshare[@]}" sleep infinity >/dev/null 2>&1 &
holder=$!
disown "$holder"
end() {
    kill -KILL "$holder"
    while kill -0 "$holder" 2>/dev/null; do sleep 0.01; done
}
[ "${KEEP:-}" = 1 ] || trap end EXIT
until first=$(pgrep --parent "$holder" --exact sleep); do sleep 0.01; done
enter+=(--target "$first")

"${enter[@]}" "$steps" "${KEEP:-}"

if [ "${KEEP:-}" = 1 ]; then
    cat <<TEXT

It is all still there. Look around with
    ${enter[*]} env PATH="$programs:\$PATH" $("${enter[@]}" cat /run/demo/look-around)
and take everything away with
    kill -KILL $holder
TEXT
    exit
fi

end
trap - EXIT
if [ "$(machine)" = "$before" ]; then
    echo "This machine is as it was before: the same links, namespaces and files."
else
    diff <(echo "$before") <(machine)
fi
