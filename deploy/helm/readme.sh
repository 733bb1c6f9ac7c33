#!/usr/bin/env bash
# Prints the README of the chart: an introduction, and a table of values.yaml with its comments. `make generate` writes
# it to deploy/helm/calico-cni/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/calico-cni"

cat <<'TEXT'
<!-- Made by `make generate` from values.yaml and deploy/helm/readme.sh; do not edit. -->
# calico-cni

Installs Calico's CNI plugin, IPAM plugin and kube-controllers. The chart renders the same objects as the manifests of its version. It does not install calico-node, which makes the routes between nodes and enforces policy.

    helm install calico-cni oci://REGISTRY/charts/calico-cni --version VERSION --namespace kube-system
    helm test calico-cni --namespace kube-system --logs              # starts a pod of this network; needs an IPPool
    helm upgrade calico-cni oci://REGISTRY/charts/calico-cni --version NEWER --namespace kube-system --reset-then-reuse-values

`helm upgrade` writes the CustomResourceDefinitions too. `helm uninstall` keeps them, because they hold all pools and addresses, and the accounts and roles of the nodes, without which pods could not be deleted; it removes nothing from the nodes.

## Values

The schema refuses unknown values. A group has no default; its row describes the values below it.

| value | default | meaning |
|---|---|---|
TEXT
# The comment above a key is its meaning. A comment followed by an empty line belongs to no key.
awk '
/^$/ { meaning = ""; next }
/^ *#/ { sub(/^ *# ?/, ""); meaning = meaning (meaning == "" ? "" : " ") $0; next }
{
    match($0, /^ */)
    depth = RLENGTH / 2
    key = value = $0
    sub(/^ */, "", key)
    sub(/:.*/, "", key)
    sub(/^[^:]*: */, "", value)
    name[depth] = key
    path = name[0]
    for (level = 1; level <= depth; level++) path = path "." name[level]
    gsub(/\|/, "\\|", meaning)
    if (value != "") printf "| `%s` | `%s` | %s |\n", path, value, meaning
    else if (meaning != "") printf "| **`%s`** | | %s |\n", path, meaning
    meaning = ""
}' values.yaml
