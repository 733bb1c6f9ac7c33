#!/usr/bin/env bash
# The steps of the demo. run.sh runs them inside its private namespaces.
set -euo pipefail
keep=${1:-}
here=$(dirname "${BASH_SOURCE[0]}")
work=/run/demo
export DATASTORE_TYPE=local DATASTORE_PATH=$work/calico.db

. "$here/say.sh"

# conf NODE: prints the network configuration of a node's plugins
conf() {
    cat <<JSON
{ "cniVersion": "1.0.0", "name": "demo", "type": "calico", "nodename": "$1", "log_level": "error",
  "datastore_type": "local", "datastore_path": "$DATASTORE_PATH",
  "ipam": { "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" } }
JSON
}

# plugin VERB NODE POD: calls the plugin as a container runtime does, with the result on stdout
plugin() {
    local conf=$work/$2.json
    [ "$1" != CHECK ] || conf=$work/$3.check.json
    ip netns exec "$2" env CNI_COMMAND="$1" CNI_CONTAINERID="demo-$3" CNI_NETNS="/run/netns/$3" CNI_IFNAME=eth0 \
        CNI_PATH="$(dirname "$(command -v calico)")" CALICO_TIMINGS="$work/timings" calico <"$conf"
}

address() { jq -r ".ips[$2].address" "$work/$1.json" | cut -d/ -f1; }
ping_pod() {
    echo "    \$ ip netns exec $1 ping -c 1 $2"
    ip netns exec "$1" ping -c 1 -w 10 "$2" | sed -n 's/^\(.* bytes from\)/    \1/p'
}

mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/netns $work
cat >$work/look-around <<TEXT
DATASTORE_TYPE=$DATASTORE_TYPE DATASTORE_PATH=$DATASTORE_PATH bash
    # then: calico-ipam show; ip netns; ip netns exec pod1 ip address; ip netns exec node1 ip route
TEXT
ip link set lo up
declare -A node=([pod1]=node1 [pod2]=node1 [pod3]=node2)

step "Two nodes: host namespaces joined by a veth, each with a default route through the other"
for name in node1 node2; do
    ip netns add $name
    ip -n $name link set lo up
    ip netns exec $name sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    conf $name >$work/$name.json
done
ip link add uplink netns node1 type veth peer name uplink netns node2
ip -n node1 address add 192.168.65.1/24 dev uplink
ip -n node2 address add 192.168.65.2/24 dev uplink
ip -n node1 address add fd66::1/64 dev uplink nodad
ip -n node2 address add fd66::2/64 dev uplink nodad
ip -n node1 link set uplink up
ip -n node2 link set uplink up
for family in -4 -6; do
    ip $family -n node1 route add default via "$([ $family = -4 ] && echo 192.168.65.2 || echo fd66::2)"
    ip $family -n node2 route add default via "$([ $family = -4 ] && echo 192.168.65.1 || echo fd66::1)"
done
# A new link needs some time for IPv6.
ip netns exec node1 ping -c 1 -w 10 fd66::2 >/dev/null
echo "    node1 192.168.65.1 fd66::1  <-- veth -->  node2 192.168.65.2 fd66::2"

step "An empty datastore: one SQLite file, which both nodes share here"
run calico-ipam init --node node1
run calico-ipam init --node node2

step "An IPv4 and an IPv6 pool"
run calico-ipam apply -f "$here/pools.yaml"

step "Three pods: a namespace each, then CNI_COMMAND=ADD ... calico < conf.json"
for pod in pod1 pod2 pod3; do
    ip netns add $pod
    ip -n $pod link set lo up
    plugin ADD "${node[$pod]}" $pod >$work/$pod.json
    echo "    $pod on ${node[$pod]}: $(address $pod 0) and $(address $pod 1)"
done

step "The result for pod1, on stdout"
jq . $work/pod1.json | sed 's/^/    /'

step "The duration of each stage of that ADD, in microseconds"
head -n 1 $work/timings | sed 's/^/    /'

step "Ping on one node, IPv4 and IPv6"
ping_pod pod1 "$(address pod2 0)"
ping_pod pod1 "$(address pod2 1)"

step "Routes between the nodes, one for each block of the other (in a cluster calico-node does this)"
calico-ipam show --show-blocks -o json >$work/blocks
for pair in "node1 node2 192.168.65.2 fd66::2" "node2 node1 192.168.65.1 fd66::1"; do
    read -r here_node there via4 via6 <<<"$pair"
    for block in $(jq -r --arg node "$there" '.. | objects | select(.affinity? == "host:" + $node) | .cidr' $work/blocks); do
        case $block in *:*) via=$via6 ;; *) via=$via4 ;; esac
        run ip -n "$here_node" route add "$block" via "$via"
    done
done

step "Ping across the nodes, IPv4 and IPv6"
ping_pod pod1 "$(address pod3 0)"
ping_pod pod1 "$(address pod3 1)"

step "The owner of each address"
run calico-ipam show
run calico-ipam show --ip="$(address pod3 0)"

step "CHECK compares pod1 with its ADD"
jq --slurpfile result $work/pod1.json '. + { prevResult: $result[0] }' $work/node1.json >$work/pod1.check.json
plugin CHECK node1 pod1
echo "    no difference (exit 0)"
route=$(ip -n node1 route show "$(address pod1 0)")
# shellcheck disable=SC2086 # the route is words
ip -n node1 route del $route
echo "    after \`ip route del $(address pod1 0)\` on the host:"
if plugin CHECK node1 pod1 >$work/check 2>/dev/null; then
    echo "CHECK missed it" >&2
    exit 1
fi
jq -r '"    " + .msg' $work/check

# shellcheck disable=SC2086 # the route is words
ip -n node1 route add $route

[ "$keep" != 1 ] || exit 0

step "DEL removes each pod's network, then its namespace is deleted"
for pod in pod1 pod2 pod3; do
    plugin DEL "${node[$pod]}" $pod
    ip netns delete $pod
    echo "    $pod deleted"
done

step "Everything is removed: addresses, veths, namespaces of pods"
run calico-ipam show
run calico-ipam check
for name in node1 node2; do
    if ip -n $name -o link | grep cali; then exit 1; fi
    run ip -n $name -brief link
done
run ip netns list
