#!/usr/bin/env bash
# `make demo`: three pods on two nodes, in namespaces of their own on this machine, start to end.
# `make demo-kubernetes` (run.sh kubernetes): two pods of a real API server.
# `make demo-controllers` (run.sh controllers): what kube-controllers does about pods, policies and nodes.
# KEEP=1 leaves everything up and says how to enter it. steps.sh, kubernetes/ and controllers/ hold the steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
steps=$PWD/tests/demo/${1:+$1/}steps.sh
programs=$PWD/target/plugin:$(tests/install-go-tools.sh --path)
export PATH="$programs:$PATH:/usr/sbin:/sbin"

# What the demo must leave as it was: links, named namespaces, and the directories a plugin may write to.
machine() {
    ip -o link | cut -d: -f2
    ls /run/netns /var/lib/calico /var/run/calico /etc/cni/net.d 2>&1 || true
}

# With process ids of their own: whatever runs in there ends with the first of them.
unshare=(unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc)
enter=(nsenter --net --mount --pid)
if [ "$(id -u)" != 0 ]; then
    unshare+=(--user --map-root-user)
    enter+=(--user --preserve-credentials)
fi

# What this machine refuses is said here; the one that stays must not hold our output open.
"${unshare[@]}" true
before=$(machine)
# The namespaces live as long as this process of ours, or as the shell that you leave in them.
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
