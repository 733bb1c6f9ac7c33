# shellcheck shell=bash
# components/node-restriction on the running node. The steps of the demo source this file after install.sh and pods.sh.

restriction=deploy/components/node-restriction

# Applies the manifest with the component, and waits until the plugins have a token that is bound to the Node.
restrict() {
    local folder=$work/restricted
    write_overlay "$folder" $restriction
    run kubectl apply --server-side -k "$folder" | grep -E '[$]|daemonset|validatingadmissionpolicy[.]|plugin-bound'
    rolled_out daemonset/calico-cni
    wait_for 60 has_bound_token
}

# Prints the token of the plugins.
plugins_token() { sed -n 's/^ *token: //p' /etc/cni/net.d/calico-kubeconfig; }

# claim_of_node FIELD: prints the name or uid of the Node in the token of the plugins. The claims are base64 without
# padding.
claim_of_node() {
    (plugins_token | cut -d. -f2 | tr '_-' '/+' | base64 -d 2>/dev/null || true) |
        jq -r --arg field "$1" '."kubernetes.io".node[$field]'
}
bound_to() { claim_of_node name; }
has_bound_token() { [ "$(bound_to)" = $node ]; }

# Sends a merge patch for the status of the pod web-1 with the token of the plugins, and prints the response. `kubectl
# patch` reads the object first, which the role of the plugins does not allow for this subresource.
patch_as_plugins() {
    local token
    token=$(plugins_token)
    curl --silent --show-error --fail-with-body --cacert $pki/ca.pem --request PATCH --data "$1" \
        --header "Authorization: Bearer $token" --header 'Content-Type: application/merge-patch+json' \
        "https://127.0.0.1:6443/api/v1/namespaces/shop/pods/web-1/status?dryRun=All"
}

# refused_by POLICY COMMAND...: prints the refusal; fails if the policy does not refuse the command
refused_by() {
    local policy=$1 said
    shift
    ! said=$("$@" 2>&1) || return
    grep -F "ValidatingAdmissionPolicy '$policy'" <<<"$said" | sed 's/^/    /'
}

# Tries a label of a pod and an affinity of another node, with the token of the plugins. A policy takes effect a moment
# after it was written, so the requests are dry runs, which policies check too.
attack() {
    local label='{ "metadata": { "labels": { "app": "thief" } } }'
    wait_for 30 refused_by calico-cni-pods patch_as_plugins "$label"
    cat >$work/affinity.yaml <<YAML
apiVersion: crd.projectcalico.org/v1
kind: BlockAffinity
metadata: { name: other-10-99-0-0-26 }
spec: { state: confirmed, node: other, type: host, cidr: 10.99.0.0/26, deleted: "false" }
YAML
    wait_for 30 refused_by calico-cni-affinities kubectl --kubeconfig /etc/cni/net.d/calico-kubeconfig create \
        --dry-run=server -f $work/affinity.yaml
}

# Prints the UID of the Node.
node_uid() { kubectl get node $node -o 'jsonpath={.metadata.uid}'; }
has_node() { [ -n "$(node_uid 2>/dev/null)" ]; }
has_new_token() { [ "$(claim_of_node uid)" = "$(node_uid)" ]; }

# Deletes the Node, which ends the token that is bound to it. kubelet registers the Node at its start only, and is
# started at once: in other clusters, the garbage collection of pods removes those of a missing Node after 40 s.
recreate_node() {
    local begun=$SECONDS former token
    former=$(node_uid)
    token=$(plugins_token)
    [ "$(claim_of_node uid)" = "$former" ]
    run kubectl delete node $node
    stop $kubelet
    start_kubelet
    wait_for 60 has_node
    echo "    kubelet registered the Node $waited s after its start: UID $(node_uid), before: $former"
    [ "$(node_uid)" != "$former" ]
    wait_for 30 has_new_token
    echo "    the plugins have a token for this UID $waited s later"
    [ "$(plugins_token)" != "$token" ]
    wait_for 120 all_ready
    echo "    node and agent are ready $((SECONDS - begun)) s after the deletion"
    start_pod after-node
}

remove_restriction() { run kubectl delete -f $restriction/rbac.yaml -f $restriction/policies.yaml; }
