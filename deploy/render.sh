#!/usr/bin/env bash
# Prints an overlay as kubectl renders it; without words deploy/install.yaml, which is the overlay kubernetes-v1.
#
#   deploy/render.sh [OVERLAY [DEPLOY]]       DEPLOY is another copy of this folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
overlay=${1:-kubernetes-v1} deploy=${2:-deploy}
PATH="$(tests/install-go-tools.sh --path):$PATH"
case $overlay in
kubernetes-v1) file=deploy/install.yaml made='make generate' ;;
*) file=install-$overlay.yaml made='make release' ;;
esac
cat <<TEXT
# Made by \`$made\` from deploy/overlays/$overlay; do not edit.
#
#   kubectl apply --server-side -f $file
TEXT
kubectl kustomize "$deploy/overlays/$overlay"
