package main

import v1 "github.com/google/go-containerregistry/pkg/v1"

// image is one of the images: what is in it, and how it is run.
type image struct {
	name        string
	description string
	// Programs of other projects first: they change seldom, and have a layer of their own.
	foreign []file
	own     []file
	// Our program, and its package in the workspace.
	program string
	crate   string
	config  v1.Config
}

// file is a program, another name of one, or a folder.
type file struct {
	path string
	// Name of the program; empty for a link or a folder.
	program string
	// The path that this is another name of.
	link string
	// Owner, user and group alike.
	owner int
}

// Paths and users are those of upstream's images up to v3.32, and the paths of the later one besides (INST-107, INST-108,
// INST-115). What each starts is asked for in two ways: manifests up to v3.32 name a program by `command`, later ones give
// `args` to the image's own, so that each image has an entry point (INST-1).
var images = []image{
	{
		name:        "cni",
		description: "Calico's CNI and IPAM plugins, what installs them on a node, and plugins of the CNI project",
		foreign: []file{
			{path: "opt/cni/bin/bandwidth", program: "bandwidth"},
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
			// The directories of the node that it writes are root's.
			User: "0",
		},
	},
	{
		name:        "kube-controllers",
		description: "Calico's controllers: garbage collection of addresses, nodes, policies, Services",
		own: []file{
			// For the file that check-status reads.
			{path: "status/", owner: 999},
			{path: "usr/bin/kube-controllers", program: "kube-controllers"},
			{path: "usr/bin/calico", link: "usr/bin/kube-controllers"},
			{path: "usr/bin/check-status", link: "usr/bin/kube-controllers"},
			{path: "usr/bin/wrapper", link: "usr/bin/kube-controllers"},
		},
		program: "kube-controllers",
		crate:   "kube-controllers",
		config: v1.Config{
			Env:        []string{"PATH=/usr/bin"},
			WorkingDir: "/",
			Entrypoint: []string{"/usr/bin/kube-controllers"},
			User:       "999",
		},
	},
}
