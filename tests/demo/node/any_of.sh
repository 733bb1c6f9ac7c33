# shellcheck shell=bash
# "Fixed addresses for several pods" in docs/configuration.md, with as many addresses as replicas. The steps of the demo
# source this file after pods.sh, and call it while no other pod of the namespace runs.

fixed_list='["10.65.200.1", "10.65.200.2/31"]'
fixed_addresses='10.65.200.1 10.65.200.2 10.65.200.3'

# fixed deployment|statefulset: prints a workload of three pods with a list of three addresses
fixed() {
    jq -n --arg kind "$1" --arg list "$fixed_list" '{
        apiVersion: "apps/v1",
        metadata: { name: "fixed", namespace: "shop" },
        spec: {
            replicas: 3,
            selector: { matchLabels: { app: "fixed" } },
            template: {
                metadata: {
                    labels: { app: "fixed" },
                    annotations: { "cni.projectcalico.org/ipAddrsAnyOf": $list }
                },
                spec: {
                    nodeName: "node1",
                    automountServiceAccountToken: false,
                    enableServiceLinks: false,
                    terminationGracePeriodSeconds: 1,
                    containers: [{ name: "main", image: "docker.io/library/demo:1" }]
                }
            }
        }
    } | if $kind == "deployment" then
        .kind = "Deployment" | .spec.strategy = { rollingUpdate: { maxSurge: 0, maxUnavailable: 1 } }
    else
        .kind = "StatefulSet" | .spec.serviceName = "fixed"
    end'
}

surge() {
    local strategy="{\"spec\":{\"strategy\":{\"rollingUpdate\":{\"maxSurge\":$1,\"maxUnavailable\":$2}}}}"
    kubectl -n shop patch deployment fixed --type merge --patch "$strategy" >/dev/null
}
restart_fixed() { kubectl -n shop rollout restart "$1/fixed" >/dev/null; }
await_fixed() {
    kubectl -n shop rollout status "$1/fixed" --timeout 180s >/dev/null
    wait_for 60 has_fixed_addresses
    echo "    $1, $2: $(addresses_of_fixed)"
}
addresses_of_fixed() {
    kubectl -n shop get pods -l app=fixed -o json |
        jq -r '[.items[] | select(.metadata.deletionTimestamp == null) | .status.podIP // "none"] | sort | join(" ")'
}
has_fixed_addresses() { [ "$(addresses_of_fixed)" = "$fixed_addresses" ]; }
# Succeeds if kubelet has reported that a pod gets no address of its list.
waits_for_an_address() {
    kubectl -n shop get events --field-selector reason=FailedCreatePodSandBox -o json |
        jq -e 'any(.items[]; .message | contains("no address of the annotation"))' >/dev/null
}
# Succeeds if one pod has no address, and kubelet has said why.
one_waits() {
    [ "$(count '.metadata.deletionTimestamp == null and (.status.podIP // "") == ""' fixed-)" = 1 ] &&
        waits_for_an_address
}
remove_fixed() {
    kubectl -n shop delete "$1" fixed --wait=false >/dev/null
    wait_for 60 gone fixed-
    wait_for 30 has_taken 0
}

give_fixed_addresses() {
    fixed deployment | kubectl apply -f - >/dev/null
    await_fixed deployment "at the start"
    restart_fixed deployment
    await_fixed deployment "after a rolling update with maxSurge 0"

    surge 1 0
    not one_waits
    restart_fixed deployment
    wait_for 120 one_waits
    [ "$(count '.status.phase == "Running"' fixed-)" = 3 ]
    echo "    with maxSurge 1 the fourth pod waits, and the three pods keep their addresses"
    surge 0 1
    await_fixed deployment "after maxSurge 0 again"
    remove_fixed deployment

    fixed statefulset | kubectl apply -f - >/dev/null
    await_fixed statefulset "at the start"
    restart_fixed statefulset
    await_fixed statefulset "after a rolling update"
    remove_fixed statefulset
}
