# shellcheck shell=bash
# kube-controllers in its image, as the Deployment runs it. The steps of the demo source this file after install.sh.

controllers=calico-kube-controllers
# The pod of the leader. The Lease's holder consists of the pod's name and a suffix that distinguishes processes in pods
# of that name.
leader() { holder | cut -d_ -f1; }
holder() { of_system lease/$controllers '{.spec.holderIdentity}'; }
# A replica that creates the Lease writes only once the Lease has its usual duration.
leads() { [ -n "$(leader 2>/dev/null)" ] && [ "$(of_system lease/$controllers '{.spec.leaseDurationSeconds}')" = 15 ]; }
# leads_after HOLDER: succeeds if a process other than HOLDER is the leader
leads_after() { leads && [ "$(holder)" != "$1" ]; }
replicas_are_ready() { [ "$(of_system deployment/$controllers '{.status.readyReplicas}')" = "$(of_system deployment/$controllers '{.spec.replicas}')" ]; }
# metrics POD NAME: prints a pod's metrics of this name, with the command of docs/beside-upstream.md; fails without such
# metrics
metrics() {
    local path=/api/v1/namespaces/kube-system/pods/$1:9094/proxy/metrics
    wait_for 10 has_metric "$path" "$2"
    run kubectl get --raw "$path" | grep -E "^    ([$] |$2)"
}
has_metric() { kubectl get --raw "$1" | grep "^$2" >/dev/null; }

# Prints user, capabilities and seccomp mode of the processes, from the kernel.
confinement() {
    pgrep -f '^/usr/bin/kube-controllers' | while read -r process; do
        sed -n 's/^\(Uid\|CapEff\|CapBnd\|NoNewPrivs\|Seccomp\):\t\([^\t]*\).*/\1 \2/p' "/proc/$process/status" | paste -sd ' '
    done | sort -u
}

show_controllers() {
    rolled_out deployment/$controllers
    run kubectl -n kube-system get pods -l k8s-app=$controllers -o wide --no-headers | sed 's/ *<none> *<none>$//'
    wait_for 90 leads
    run kubectl -n kube-system get lease $controllers --no-headers
    local pod
    pod=$(leader)
    run kubectl get --raw "/api/v1/namespaces/kube-system/pods/$pod:9440/proxy/readyz"
    echo
    echo "    in the kernel's words (user, capabilities, privileges, seccomp): $(confinement)"
    [[ "$(confinement)" =~ ^Uid\ 999\ CapEff\ 0*\ CapBnd\ 0*\ NoNewPrivs\ 1\ Seccomp\ 2$ ]]
}
