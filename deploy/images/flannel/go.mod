// The plugin flannel in the last version that the CNI project published, with the CNI library of the other plugins, which
// adds the versions 1.0.0 and 1.1.0 of CNI. It needs a module of its own, because the other plugins come from a later
// version of the same module. `go mod tidy` would add modules that only Windows needs, and fail, because that library
// has dropped a package of theirs.
module calico.example/deploy/images/flannel

go 1.25.0

tool github.com/containernetworking/plugins/plugins/meta/flannel

require (
	github.com/containernetworking/cni v1.3.0 // indirect
	github.com/containernetworking/plugins v0.9.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
