# shellcheck shell=bash
# Upgrade from one version to another while pods run and communicate. The steps of the demo source this file after
# install.sh and pods.sh.

conflist=/etc/cni/net.d/10-calico.conflist

# Repeatedly reads the configuration and runs the plugin, without pause, until $work/watched exists. Records each change
# and each failed attempt. Reads the configuration first, because the installer replaces the programs before it.
watch_node() {
    local looks=0 last='' seen version level
    while [ ! -e $work/watched ]; do
        looks=$((looks + 1))
        if level=$(jq -er '.plugins[0].log_level' $conflist 2>&1) && version=$(/opt/cni/bin/calico -v 2>&1); then
            seen="$version, log_level $level"
        else
            seen="FAILED: $level; ${version:-}"
        fi
        [ "$seen" = "$last" ] || echo "$seen"
        last=$seen
    done >$work/seen
    echo $looks >$work/looks
}
begin_watching() {
    rm -f $work/watched
    watch_node &
    watching=$!
}
# Ends the observation and prints what it saw.
end_watching() {
    touch $work/watched
    wait $watching
    echo "    plugin and configuration read $(<$work/looks) times. Versions in turn:"
    sed 's/^/      /' $work/seen
}

# start_pinging FROM TO: starts a ping from one pod to another, 50 times per second. An interrupt ends it and makes it
# print the numbers of requests and replies.
start_pinging() {
    ip netns exec "$(namespace_of "$(address "$1")")" ping -i 0.02 "$(address "$2")" >$work/pings &
    pinging=$!
}
sent() { sed -n 's/^\([0-9]*\) packets transmitted, [0-9]* received.*/\1/p' $work/pings; }
# The count excludes the lines about an unreachable host.
answered() { sed -n 's/^[0-9]* packets transmitted, \([0-9]*\) received.*/\1/p' $work/pings; }

# Prints the time since which the node has been ready.
ready_since() { kubectl get node $node -o 'jsonpath={.status.conditions[?(@.type=="Ready")].lastTransitionTime}'; }

# level_of VERSION: prints the log_level in the manifest of a version, which has the configuration twice
level_of() { sed -n '/"log_level"/{s/.*"log_level": "\(.*\)",/\1/p;q}' "$work/install-$1.yaml"; }

# changed_once FROM TO: fails unless plugin and configuration were those of FROM at the beginning of the observation and
# those of TO at its end, each readable in each attempt
changed_once() {
    not grep FAILED $work/seen
    # Both were replaced during the observation, and the new configuration never existed with the old program.
    [ "$(head -1 $work/seen)" = "$1, log_level $(level_of "$1")" ]
    [ "$(tail -1 $work/seen)" = "$2, log_level $(level_of "$2")" ]
    not grep "$1, log_level $(level_of "$2")" $work/seen
    # The pod that was created last wins, once: no state was seen twice.
    [ "$(sort -u $work/seen | wc -l)" = "$(wc -l <$work/seen)" ]
}

# is_installed VERSION: fails unless program and configuration of the node are those of a version
is_installed() {
    [ "$(digest /opt/cni/bin/calico)" = "$(digest "${programs[$1]}/calico")" ]
    [ "$(jq -r '.plugins[0].log_level' $conflist)" = "$(level_of "$1")" ]
}

# roll FROM TO: applies the manifest of TO and waits, as an operator does; creates many pods during the upgrade and one
# right after it
roll() {
    local from=$1 to=$2 since
    since=$(ready_since)
    begin_watching
    start_pinging web-2 web-1
    run kubectl apply --server-side -f "$work/install-$to.yaml" | grep -E '[$]|daemonset|deployment|configmap'
    # shellcheck disable=SC2046 # names
    pods $(seq -f 'middle-%g' $many) >$work/middle.yaml
    kubectl apply -f $work/middle.yaml >/dev/null
    rolled_out daemonset/calico-cni
    pods right-after | kubectl apply -f - >/dev/null
    rolled_out deployment/calico-kube-controllers
    wait_for 120 running $many middle-
    wait_for 60 running 1 right-after
    keeps_neighbor
    is_tuned right-after
    kill -INT $pinging
    wait $pinging || true
    end_watching

    echo "    pods made in the middle: $many; right after: $(address right-after)"
    echo "    pings from web-2 to web-1: $(answered) answered of $(sent)"
    echo "    /opt/cni/bin/calico: sha256 $(digest /opt/cni/bin/calico)…, in the image: $(digest "${programs[$to]}/calico")…"
    echo "    the node has been ready since $(ready_since), before: $since"
    [ "$(answered)" -gt 0 ]
    # The last request may have been interrupted.
    [ $(($(sent) - $(answered))) -le 1 ]
    changed_once "$from" "$to"
    is_installed "$to"
    [ "$(ready_since)" = "$since" ]
    doctor | tail -1 | sed 's/^/    calico doctor: /'
    kubectl -n shop delete -f $work/middle.yaml --wait=false >/dev/null
    kubectl -n shop delete pod right-after --wait=false >/dev/null
    wait_for 120 gone middle-
    wait_for 60 gone right-after
    wait_for 30 has_taken "$(count true)"
}

has_one_agent() { [ "$(kubectl -n kube-system get pods -l k8s-app=calico-cni -o name | wc -l)" = 1 ]; }
# log_says CONTAINER TEXT: succeeds if the log of this container of the DaemonSet's pod contains this text. The log is
# then in $work/CONTAINER.log.
log_says() {
    kubectl -n kube-system logs -l k8s-app=calico-cni -c "$1" --tail=-1 >"$work/$1.log" 2>/dev/null || true
    grep -F "$2" "$work/$1.log" >/dev/null
}

# roll_with_surge FROM TO: applies the manifest of TO with a patch that lets the new agent start beside the former one,
# as nothing refuses (docs/upgrade.md). Ends with the manifest of FROM without the patch.
roll_with_surge() {
    local from=$1 to=$2 folder=$work/surge since
    since=$(ready_since)
    mkdir -p "$folder"
    cp "$work/install-$to.yaml" "$folder/install.yaml"
    cat >"$folder/kustomization.yaml" <<YAML
resources: [install.yaml]
patches:
  - patch: |-
      apiVersion: apps/v1
      kind: DaemonSet
      metadata: { name: calico-cni, namespace: kube-system }
      spec: { updateStrategy: { rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } } }
YAML
    begin_watching
    run kubectl apply --server-side -k "$folder" | grep -E '[$]|daemonset|deployment|configmap'
    rolled_out daemonset/calico-cni
    wait_for 60 has_one_agent
    # The new agent tries each 5 s to take the port.
    wait_for 60 log_says cni-agent 'which is free now'
    wait_for 60 agent_is_ready
    log_says cni-agent 'until the port is free'
    sed -n 's/^.*: \(cannot listen on .*\|listening on .*\)/    the log of the new agent: \1/p' $work/cni-agent.log
    end_watching
    echo "    the node has been ready since $(ready_since), before: $since"
    changed_once "$from" "$to"
    keeps_neighbor
    [ "$(ready_since)" = "$since" ]
    rolled_out deployment/calico-kube-controllers

    run kubectl apply --server-side -f "$work/install-$from.yaml" | grep -E '[$]|daemonset|deployment|configmap'
    [ "$(of_system daemonset/calico-cni '{.spec.updateStrategy.rollingUpdate.maxSurge}')" = 0 ]
    rolled_out daemonset/calico-cni
    rolled_out deployment/calico-kube-controllers
    wait_for 60 agent_is_ready
    is_installed "$from"
    keeps_neighbor
}
