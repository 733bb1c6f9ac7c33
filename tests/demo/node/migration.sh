# shellcheck shell=bash
# docs/moving-to-v3.md on the running node, while pods exchange packets and others start. The steps of the demo source
# this file after install.sh, pods.sh, controllers.sh, upgrade.sh and restriction.sh, and call it while the pods of
# $work/pods.yaml run.

migration=deploy/components/migrate-to-v3

# of_migration PATH: prints a field of the object that controls the migration
of_migration() { kubectl get datastoremigration v1-to-v3 -o "jsonpath=$1"; }
in_phase() { [ "$(of_migration '{.status.phase}')" = "$1" ]; }
# condition_of TYPE FIELD: prints a field of a condition of the migration
condition_of() { of_migration "{.status.conditions[?(@.type==\"$1\")].$2}"; }
has_made_dry_run() { [ "$(condition_of DryRun message)" = "$1" ]; }
# report LIST: prints a list of the dry run's report
report() { kubectl -n kube-system get configmap calico-migration-v1-to-v3 -o "jsonpath={.data.$1}"; }
report_says() { report summary | grep -x "$1" >/dev/null; }
is_locked() { [ "$(kubectl get clusterinformations.crd.projectcalico.org default -o 'jsonpath={.spec.datastoreReady}')" = false ]; }
has_ended() { ! kubectl get datastoremigration v1-to-v3 >/dev/null 2>&1; }
definitions_of_v1() { kubectl get crd -o name | grep -c '[.]crd[.]projectcalico[.]org$' || true; }
has_no_v1() { [ "$(definitions_of_v1)" = 0 ]; }

# Without this, kubectl would look for the objects of a group that is gone.
forget_groups() { rm -rf "$HOME/.kube/cache"; }

# Applies the component and waits, as an operator does. On the host's network a node runs one replica only.
prepare_migration() {
    local folder=$work/migrating
    run kubectl apply --server-side -f deploy/crds/v3 | sed -n '1,2p; $p'
    write_overlay "$folder" $restriction $migration
    echo 'replicas: [{ name: calico-kube-controllers, count: 1 }]' >>"$folder/kustomization.yaml"
    run kubectl apply --server-side -k "$folder" | grep -E '[$]|daemonset|deployment|datastoremigrations|sealed'
    rolled_out daemonset/calico-cni
    rolled_out deployment/$controllers
    wait_for 90 leads
    forget_groups
}

# Makes a dry run, which finds neither a conflict nor a refusal.
try_migration() {
    kubectl apply -f - >/dev/null <<YAML
apiVersion: migration.projectcalico.org/v1
kind: DatastoreMigration
metadata: { name: v1-to-v3, annotations: { migration.projectcalico.org/dry-run: first } }
spec: { type: APIServerToCRDs }
YAML
    wait_for 120 has_made_dry_run first
    run kubectl get datastoremigration v1-to-v3
    report summary | sed 's/^/    /'
    report_says 'conflict: 0'
    report_says 'refused: 0'
    not is_locked
}

# Starts the migration, and pods while v1 is locked.
migrate() {
    local names
    start_pinging pod-2 pod-1
    run kubectl annotate datastoremigration v1-to-v3 migration.projectcalico.org/dry-run-
    wait_for 120 is_locked
    names=$(seq -f 'moving-%g' 10)
    # shellcheck disable=SC2086 # names
    pods $names >$work/moving.yaml
    kubectl apply -f $work/moving.yaml >/dev/null
    wait_for 180 in_phase Complete
    echo "    complete $waited s after the lock; $(condition_of PodsBlocked message)"
    wait_for 120 running 10 moving-
    kill -INT $pinging
    wait $pinging || true
    echo "    pings from pod-2 to pod-1: $(answered) answered of $(sent)"
    [ "$(answered)" -gt 0 ]
    # The last request may have been interrupted.
    [ $(($(sent) - $(answered))) -le 1 ]
    [ "$(condition_of PodsBlocked reason)" = V3Opened ]
    is_locked
    run calico-ipam check
}

# Deletes the object, and with it v1, and then names v3 in the configuration.
finish_migration() {
    run kubectl delete datastoremigration v1-to-v3 --wait=false
    wait_for 120 has_ended
    wait_for 60 has_no_v1
    forget_groups
    echo "    no definition of crd.projectcalico.org is left"
    start_pod after-v1
    wait_for 30 has_taken $((many + 10))
    kubectl -n shop delete -f $work/moving.yaml --wait=false >/dev/null
    wait_for 120 gone moving-
    wait_for 60 has_taken $many

    local folder=$work/v3
    overlay=deploy/overlays/kubernetes-v3 write_overlay "$folder" $restriction
    run kubectl apply --server-side -k "$folder" | grep -E '[$]|daemonset|deployment'
    rolled_out daemonset/calico-cni
    rolled_out deployment/$controllers
    wait_for 90 leads
    run kubectl delete -f $migration/seal.yaml -f $migration/rbac.yaml -f deploy/crds/migration
    kubectl -n kube-system delete configmap calico-migration-v1-to-v3 >/dev/null
    [ "$(jq -r '.plugins[0].calico_api_group' $conflist)" = projectcalico.org/v3 ]
    keeps_neighbor
    start_pod with-v3
    run calico-ipam check
}
