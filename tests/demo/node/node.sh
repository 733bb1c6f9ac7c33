# shellcheck shell=bash
# A node: containerd and kubelet, in the demo's private namespaces. The steps of the demo source this file after setting
# $work.

node=node1

# Creates private directories to which a node's programs write, in addition to /run and /var/lib.
node_world() {
    mount -t tmpfs tmpfs /opt
    mount -t tmpfs tmpfs /var/log
    mkdir -p $work/etc/upper $work/etc/work /var/lib/kubelet /var/lib/calico
    mount -t overlay overlay -o lowerdir=/etc,upperdir=$work/etc/upper,workdir=$work/etc/work /etc
    # Hides the CNI configurations of this machine.
    mkdir -p /opt/cni/bin /etc/cni
    mount -t tmpfs tmpfs /etc/cni
    mkdir /etc/cni/net.d
    # The far end of the uplink is a machine outside the cluster.
    ip netns add outside
    ip link set world netns outside
    ip -n outside link set lo up
    ip -n outside link set world up
    ip -n outside address add 192.168.65.2/24 dev world
}

write_node_configuration() {
    cat >$work/containerd.toml <<TOML
version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'native'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '$image'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
TOML
    cat >$work/kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication: { anonymous: { enabled: false }, webhook: { enabled: false }, x509: { clientCAFile: $pki/ca.pem } }
authorization: { mode: AlwaysAllow }
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
evictionHard: { memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%" }
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: ""
YAML
    certificate kubelet "/O=system:nodes/CN=system:node:$node"
    kubeconfig $work/kubelet.kubeconfig --client-certificate $pki/kubelet.pem --client-key $pki/kubelet-key.pem --embed-certs
    # Grants the permissions that the Node authorizer would grant.
    kubectl create clusterrolebinding nodes --clusterrole system:node --group system:nodes >/dev/null
}

start_containerd() {
    # A kubelet that starts before containerd is ready exits, and there is no systemd to restart it.
    local boots
    boots=$(containerd_boots)
    containerd --config $work/containerd.toml >>$work/containerd.log 2>&1 &
    containerd=$!
    wait_for 60 containerd_has_booted $((boots + 1)) || { tail $work/containerd.log >&2; return 1; }
}
# Hides the warning that containerd prints on hosts with cgroups v1.
ctr() { command ctr "$@" 2> >(sed /DEPRECATION/d >&2); }
containerd_boots() { grep -c 'containerd successfully booted' $work/containerd.log 2>/dev/null || true; }
containerd_has_booted() { [ "$(containerd_boots)" = "$1" ]; }

start_kubelet() {
    kubelet --config $work/kubelet.yaml --kubeconfig $work/kubelet.kubeconfig --hostname-override $node \
        --node-ip $host_address >>$work/kubelet.log 2>&1 &
    kubelet=$!
}

# stop PROCESS: kills a process, as a power failure does
stop() {
    kill -KILL "$1"
    wait "$1" 2>/dev/null || true
}

# Simulates a power failure: no process, namespace, interface or file in /run remains, but the disk does.
power_off() {
    stop $kubelet
    stop $containerd
    wait_for 10 nothing_runs
    find /run/netns -name 'cni-*' -printf '%f\n' | xargs -r -n 1 ip netns delete
    findmnt -rno TARGET | grep '^/run/containerd' | sort -r | xargs -r umount -l 2>/dev/null || true
    rm -rf /run/containerd
    remove_cgroups
}

# Lists the processes of this node's containers, which are in cgroups below k8s.io.
containers() { cat /sys/fs/cgroup/pids/k8s.io/*/cgroup.procs /sys/fs/cgroup/k8s.io/*/cgroup.procs 2>/dev/null; }
# Called repeatedly, because a starting shim may still start its container. With cgroups v1, a container that runc has
# frozen to delete it must be thawed before it can be killed.
nothing_runs() {
    pkill -KILL -f containerd-shim-runc-v2 || true
    for state in /sys/fs/cgroup/freezer/k8s.io/*/freezer.state; do echo THAWED >"$state" || true; done 2>/dev/null
    containers | xargs -r kill -KILL 2>/dev/null || true
    [ -z "$(containers)" ] && ! pgrep -f containerd-shim-runc-v2 >/dev/null
}

# Removes the containers' cgroups from the machine. A cgroup whose process has just ended may be busy for a moment.
remove_cgroups() { wait_for 10 no_cgroups; }
cgroups() { find /sys/fs/cgroup -depth -type d -path '*/k8s.io*' "$@" 2>/dev/null || true; }
no_cgroups() { cgroups -exec rmdir {} + && [ -z "$(cgroups)" ]; }

is_ready() { [ "$(kubectl get node $node -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; }
