# shellcheck shell=bash
# Obstacles that pass (docs/recovery.md, and "Owners and SELinux" in docs/options.md) on a node with kubelet and
# containerd. Each function leaves the node ready. The steps of the demo source this file after upgrade.sh and
# neighbor.sh.

net=/etc/cni/net.d

# restarts CONTAINER: prints how often kubelet has restarted this container of the DaemonSet's pod
restarts() {
    kubectl -n kube-system get pods -l k8s-app=calico-cni -o json | jq --arg name "$1" '[.items[].status
        | (.initContainerStatuses + .containerStatuses)[]? | select(.name == $name).restartCount] | add // 0'
}

# agent_says TEXT: succeeds if the agent's answer to the readiness probe contains this text
agent_says() { ask_agent && grep -F "$1" $work/readyz >/dev/null; }
ask_agent() { curl --silent --output $work/readyz "$@" http://127.0.0.1:9097/readyz; }
agent_is_ready() { ask_agent --fail; }
say_readyz() { echo "    /readyz of cni-agent: $(<$work/readyz)"; }
all_ready() { is_ready && agent_is_ready; }

# Starts containerd again if it ended, as systemd does with the unit that containerd's sources contain (Restart=always,
# RestartSec=5).
supervise() {
    ! kill -0 "$containerd" 2>/dev/null || return 0
    echo "    containerd ended; as systemd would, this step starts it again after 5 s. Its last words:"
    sed -n 's/.*level=fatal msg="\(.*\)" error="\(.*\)".*/      \1: \2/p' $work/containerd.log | tail -1
    sleep 5
    start_containerd
}

# start_pod NAME: starts a pod, and deletes it
start_pod() {
    pods "$1" | kubectl apply -f - >/dev/null
    wait_for 60 starts "$1"
    echo "    the pod $1 runs, with the address $(address "$1")"
    kubectl -n shop delete pod "$1" --wait=false >/dev/null
    wait_for 60 gone "$1"
}
starts() { supervise && running 1 "$1"; }

# swallow -I|-D: begins or ends to drop packets to the API server's address, as a ClusterIP swallows them before
# kube-proxy has run. kubelet and kubectl use another address.
swallow() { iptables -w "$1" INPUT --destination $host_address --protocol tcp --dport 6443 --jump DROP; }
installs() {
    kubectl -n kube-system get pods -l k8s-app=calico-cni -o json |
        jq -e '.items[0].status.initContainerStatuses[0].state.running' >/dev/null
}
# Waits until install-cni has run for 20 s without a response, and then lets packets through.
end_of_swallowing() {
    wait_for 60 installs
    sleep 20
    not is_ready
    swallow -D
    echo "    after 20 s, kube-proxy would have run: packets reach the API server from now on"
}

# Removes the directory for configurations and creates it again. The mount in the agent's container stays at the removed
# directory, and so does containerd's inotify watch.
remove_directory() {
    local before since
    before=$(restarts cni-agent)
    since=$(ready_since)
    run rm -r $net
    run mkdir $net
    wait_for 120 has_recovered $((before + 1))
    echo "    restarts of cni-agent: $(restarts cni-agent), before: $before"
    echo "    the node is ready again $waited s later: since $(ready_since), before: $since"
    run ls -l $net
    start_pod after-removal
    [ "$(restarts cni-agent)" = $((before + 1)) ]
    # Its owner adds the entry again, as istio-cni does (docs/neighbors.md).
    chain_neighbor
}
has_recovered() { supervise && [ "$(restarts cni-agent)" = "$1" ] && [ -e $conflist ] && all_ready; }

# Reads what kubelet and the controller of DaemonSets report while install-cni fails: the fields that kube-state-metrics
# copies into the series of two alerts. Succeeds if both report the failure.
reports_failure() {
    waiting=$(kubectl -n kube-system get pods -l k8s-app=calico-cni -o json | jq -r '[.items[]
        | select(.metadata.deletionTimestamp == null).status.initContainerStatuses[]? | select(.name == "install-cni")
        | .state.waiting.reason | values] | first // ""')
    failures=$(restarts install-cni)
    unavailable=$(of_system daemonset/calico-cni '{.status.numberUnavailable}')
    { [ "$waiting" = CrashLoopBackOff ] || [ "${failures:-0}" -gt "$1" ]; } && [ "$unavailable" = 1 ]
}

# Gives the directory to a user who is not root, as Kubespray does, then applies components/dac-override, and
# components/node-condition for the next step.
give_directory_away() {
    local folder=$work/obstacles capabilities before waiting failures unavailable
    before=$(restarts install-cni)
    chown 997:997 $net
    rm $net/calico-kubeconfig
    run stat --format 'user %u, mode %a' $net
    kubectl -n kube-system delete pod -l k8s-app=calico-cni --wait=false >/dev/null
    wait_for 60 log_says install-cni 'belongs to user 997'
    echo "    install-cni: $(grep -F -m 1 'belongs to user 997' $work/install-cni.log)"
    [ ! -e $net/calico-kubeconfig ]
    wait_for 60 reports_failure "$before"
    echo "    kubelet reports of install-cni: waiting.reason '$waiting', restartCount $failures, before: $before;" \
        "the DaemonSet: numberUnavailable $unavailable"
    write_overlay "$folder" deploy/components/dac-override deploy/components/node-condition
    cat >>"$folder/kustomization.yaml" <<YAML
patches:
  - patch: |-
      apiVersion: apps/v1
      kind: DaemonSet
      metadata: { name: calico-cni, namespace: kube-system }
      spec:
        template:
          spec:
            containers: [{ name: cni-agent, env: [{ name: CNI_NODE_CONDITION_INTERVAL, value: 5s }] }]
YAML
    echo "    with components/dac-override:"
    run kubectl apply --server-side -k "$folder" | grep -E '[$]|daemonset'
    rolled_out daemonset/calico-cni
    wait_for 60 all_ready
    capabilities=$(sed -n 's/^CapEff:\t0*//p' "/proc/$(pgrep --newest -f '^/usr/bin/calico refresh-token')/status")
    echo "    capabilities of cni-agent in the kernel's words: $capabilities (2: DAC_OVERRIDE)"
    [ "$capabilities" = 2 ]
    [ -s $net/calico-kubeconfig ]
    [ "$(stat --format %u $net)" = 997 ]
    start_pod of-another-user
    chown 0:0 $net
}

# Makes containerd read another directory, until the agent reports what kubelet says about that.
read_another_directory() {
    cp $work/containerd.toml $work/containerd-ours.toml
    cat >>$work/containerd.toml <<TOML
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    conf_dir = '/etc/cni/other.d'
TOML
    restart_containerd
    wait_for 60 agent_says NetworkReady=false
    say_readyz
    mv $work/containerd-ours.toml $work/containerd.toml
    restart_containerd
    wait_for 120 all_ready
    echo "    containerd reads $net again: node and agent are ready $waited s later"
    rmdir /etc/cni/other.d
}
restart_containerd() {
    stop "$containerd"
    start_containerd
}

# Counts the tokens that the API server has issued.
tokens() {
    kubectl get --raw /metrics |
        awk '/^apiserver_request_total.*resource="serviceaccounts".*subresource="token"/ { n += $NF } END { print +n }'
}

# recovers_in_place RESTARTS TOKENS POD: waits until node and agent are ready, and starts a pod. Fails if the agent has
# restarted, or if more than one token was issued, since both had these numbers.
recovers_in_place() {
    local issued
    wait_for 120 all_ready
    issued=$(($(tokens) - $2))
    echo "    node and agent are ready $waited s later; tokens issued meanwhile: $issued;" \
        "restarts of cni-agent: $(restarts cni-agent), before: $1"
    [ $issued -le 1 ]
    [ "$(restarts cni-agent)" = "$1" ]
    [ -s $net/calico-kubeconfig ]
    start_pod "$3"
}

# Makes the file system of the directory read-only while the kubeconfig is missing, and then writable.
make_read_only() {
    local before issued
    before=$(restarts cni-agent)
    issued=$(tokens)
    rm $net/calico-kubeconfig
    run mount -o remount,ro /etc/cni
    wait_for 60 agent_says 'Read-only file system'
    say_readyz
    run mount -o remount,rw /etc/cni
    recovers_in_place "$before" "$issued" after-read-only
}

# agent_counts NAME VALUE: succeeds if the agent's metric of this name has this value
agent_counts() { [ "$(agent_metric "$1")" = "$2" ]; }
agent_metric() { curl --silent http://127.0.0.1:9097/metrics | sed -n "s/^calico_cni_$1 //p"; }

# Fills the file system of the directory while configuration and kubeconfig are missing, and then makes room.
fill_disk() {
    local before issued restored
    before=$(restarts cni-agent)
    issued=$(tokens)
    restored=$(agent_metric files_restored_total)
    # Both files have one page each.
    run mount -o remount,size=16k /etc/cni
    rm $net/calico-kubeconfig $conflist
    not head -c 1M /dev/zero >$net/filler 2>$work/full
    sed 's/^/    /' $work/full
    run df --output=size,avail /etc/cni
    wait_for 60 agent_says 'No space left'
    say_readyz
    # The agent looks at the files once a minute.
    wait_for 90 agent_counts install_ok 0
    wait_for 60 not is_ready
    [ ! -e $conflist ]
    agent_counts files_restored_total "$restored"
    run rm $net/filler
    run mount -o remount,size=50% /etc/cni
    recovers_in_place "$before" "$issued" after-full
    agent_counts files_restored_total $((restored + 1))
    # Its owner adds the entry again.
    chain_neighbor
}

# Applies the DaemonSet of the former version under another name. Its pod installs last, so the other agent restores
# nothing. Ends with the installation of today's version without the components of the steps before.
run_two_daemonsets() {
    awk 'BEGIN { RS = ORS = "---\n" } /\nkind: DaemonSet\n/' "$work/install-$former.yaml" |
        sed 's/\(k8s-app: calico-cni\|^  name: calico-cni\)$/\1-twin/' >$work/twin.yaml
    begin_watching
    run kubectl apply -f $work/twin.yaml
    rolled_out daemonset/calico-cni-twin
    # The agent looks at the files once a minute.
    wait_for 120 agent_says 'restoring no file'
    say_readyz
    end_watching
    changed_once "$now" "$former"
    run kubectl delete -f $work/twin.yaml
    wait_for 60 no_pods_of calico-cni-twin
    run kubectl apply --server-side -f "$work/install-$now.yaml" | grep -E '[$]|daemonset'
    kubectl delete -f deploy/components/node-condition/rbac.yaml >/dev/null
    rolled_out daemonset/calico-cni
    is_installed "$now"
    keeps_neighbor
    wait_for 60 all_ready
}
