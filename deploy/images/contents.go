package main

import v1 "github.com/google/go-containerregistry/pkg/v1"

// image describes the contents of an image and its configuration.
type image struct {
	name        string
	description string
	// Programs of other projects. They rarely change, so they have a separate layer, which is the first.
	foreign []file
	own     []file
	// Name of our program, and of its package in the workspace.
	program string
	crate   string
	config  v1.Config
}

// file is a program, a link to a program, or a folder.
type file struct {
	path string
	// Name of the program; empty for a link or a folder.
	program string
	// Target of a link.
	link string
	// Numeric user and group that own the file.
	owner int
}

// images has the paths and users of upstream's images up to v3.32, and also the paths of upstream's single image from
// v3.33 on. Manifests up to v3.32 start a program by `command`; later ones pass `args` to the entry point of the image,
// so each image has an entry point.
var images = []image{
	{
		name:        "cni",
		description: "Calico's CNI and IPAM plugins, what installs them on a node, and plugins of the CNI project",
		foreign: []file{
			{path: "opt/cni/bin/bandwidth", program: "bandwidth"},
			{path: "opt/cni/bin/flannel", program: "flannel"},
			{path: "opt/cni/bin/host-local", program: "host-local"},
			{path: "opt/cni/bin/loopback", program: "loopback"},
			{path: "opt/cni/bin/portmap", program: "portmap"},
			{path: "opt/cni/bin/tuning", program: "tuning"},
		},
		own: []file{
			{path: "opt/cni/bin/calico", program: "calico"},
			{path: "opt/cni/bin/calico-ipam", link: "opt/cni/bin/calico"},
			{path: "opt/cni/bin/install", link: "opt/cni/bin/calico"},
			{path: "usr/bin/calico", link: "opt/cni/bin/calico"},
			{path: "usr/bin/calico-ipam", link: "opt/cni/bin/calico"},
		},
		program: "calico",
		crate:   "cni-plugin",
		config: v1.Config{
			Env:        []string{"PATH=/opt/cni/bin:/usr/bin"},
			WorkingDir: "/opt/cni/bin",
			Entrypoint: []string{"/usr/bin/calico"},
			Cmd:        []string{"component", "cni", "install"},
			// The installer writes directories of the node that belong to root.
			User: "0",
		},
	},
	{
		name:        "kube-controllers",
		description: "Calico's controllers: garbage collection of addresses, nodes, policies, Services",
		own: []file{
			// kube-controllers writes a file here that check-status reads.
			{path: "status/", owner: 999},
			{path: "usr/bin/kube-controllers", program: "kube-controllers"},
			{path: "usr/bin/calico", link: "usr/bin/kube-controllers"},
			{path: "usr/bin/check-status", link: "usr/bin/kube-controllers"},
			{path: "usr/bin/wrapper", link: "usr/bin/kube-controllers"},
		},
		program: "kube-controllers",
		crate:   "kube-controllers-program",
		config: v1.Config{
			Env:        []string{"PATH=/usr/bin"},
			WorkingDir: "/",
			Entrypoint: []string{"/usr/bin/kube-controllers"},
			User:       "999",
		},
	},
}
