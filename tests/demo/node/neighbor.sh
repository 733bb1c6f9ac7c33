# shellcheck shell=bash
# A program that chains its plugin into the configuration of the node, as istio-cni does (docs/neighbors.md). The plugin
# is `tuning`, which sets a value in the network namespace of each pod. The steps of the demo source this file after
# pods.sh and upgrade.sh.

# Renames a new file, with the entry of the plugin at the end, over the configuration.
chain_neighbor() {
    jq '.plugins += [{ type: "tuning", sysctl: { "net.ipv4.conf.eth0.arp_filter": "1" } }]' $conflist >$conflist.new
    mv $conflist.new $conflist
}

# Succeeds if the configuration has the entry, once and at the end.
keeps_neighbor() {
    [ "$(jq -c '[.plugins[].type == "tuning"] | [.[-1], (map(select(.)) | length)]' $conflist)" = '[true,1]' ]
}

# Succeeds if the network of a pod has the value of the plugin.
is_tuned() {
    [ "$(ip netns exec "$(namespace_of "$(address "$1")")" cat /proc/sys/net/ipv4/conf/eth0/arp_filter)" = 1 ]
}
