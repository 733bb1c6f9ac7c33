#!/usr/bin/env bash
# Prints deploy/install.yaml: the overlay kubernetes-v1, as kubectl renders it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
PATH="$(../tests/install-go-tools.sh --path):$PATH"
cat <<'TEXT'
# Made by `make generate` from deploy/overlays/kubernetes-v1; do not edit.
#
#   kubectl apply --server-side -f deploy/install.yaml
TEXT
kubectl kustomize overlays/kubernetes-v1
