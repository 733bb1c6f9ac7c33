package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// subnet is the content of the file that flanneld writes, such as
//
//	FLANNEL_NETWORK=10.244.0.0/16
//	FLANNEL_SUBNET=10.244.1.1/24
//	FLANNEL_MTU=1450
//	FLANNEL_IPMASQ=true
type subnet struct {
	// The ranges of all nodes.
	networks []netip.Prefix
	// The ranges of this node, at most one of each family.
	own []netip.Prefix
	mtu uint64
	// True if flanneld masquerades the traffic of pods.
	masquerades bool
}

// delegate returns the configuration of the delegate: that of `delegate`, completed by the subnet of the node.
func (c *conf) delegate() (object, error) {
	for _, key := range []string{"name", "ipam"} {
		if _, given := c.Delegate[key]; given {
			return nil, fmt.Errorf("`delegate` contains `%s`, which this plugin sets; remove it there", key)
		}
	}
	s, err := readSubnet(c.SubnetFile)
	if err != nil {
		return nil, err
	}
	ipam, err := s.ipam(c.IPAM)
	if err != nil {
		return nil, err
	}
	delegate := object{"type": "bridge", "ipMasq": !s.masquerades, "mtu": s.mtu}
	for key, value := range c.Delegate {
		delegate[key] = value
	}
	kind, isText := delegate["type"].(string)
	if !isText {
		return nil, errors.New("`type` of `delegate` is not a text")
	}
	if _, given := delegate["isGateway"]; kind == "bridge" && !given {
		delegate["isGateway"] = true
	}
	delegate["name"], delegate["ipam"] = c.Name, ipam
	if c.CNIVersion != "" {
		delegate["cniVersion"] = c.CNIVersion
	}
	if c.RuntimeConfig != nil {
		delegate["runtimeConfig"] = c.RuntimeConfig
	}
	return delegate, nil
}

// ipam returns the given settings of IPAM with the ranges of the node, and with routes to the ranges of all nodes.
func (s *subnet) ipam(given object) (object, error) {
	ipam := object{"type": "host-local"}
	for key, value := range given {
		ipam[key] = value
	}
	routes, isList := []any{}, true
	if present := ipam["routes"]; present != nil {
		routes, isList = present.([]any)
	}
	if !isList {
		return nil, errors.New("`routes` of `ipam` is not a list")
	}
	for _, network := range s.networks {
		routes = append(routes, object{"dst": network.String()})
	}
	ranges := []any{}
	for _, own := range s.own {
		ranges = append(ranges, []any{object{"subnet": own.String()}})
	}
	ipam["ranges"], ipam["routes"] = ranges, routes
	return ipam, nil
}

// readSubnet reads the file that flanneld writes.
func readSubnet(file string) (*subnet, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("flanneld has not written the subnet of this node: %w", err)
	}
	s, given := &subnet{}, map[string]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
			err = addPrefixes(&s.networks, value)
			given["FLANNEL_NETWORK"] = true
		case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
			err = addPrefixes(&s.own, value)
			given["FLANNEL_SUBNET"] = true
		case "FLANNEL_MTU":
			s.mtu, err = strconv.ParseUint(value, 10, 32)
			given[key] = true
		case "FLANNEL_IPMASQ":
			s.masquerades = value == "true"
			given[key] = true
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, key, err)
		}
	}
	for _, key := range []string{"FLANNEL_NETWORK", "FLANNEL_SUBNET", "FLANNEL_MTU", "FLANNEL_IPMASQ"} {
		if !given[key] {
			return nil, fmt.Errorf("%s contains no %s", file, key)
		}
	}
	return s, nil
}

// addPrefixes adds ranges that commas separate. The address of a range may be any in it.
func addPrefixes(into *[]netip.Prefix, value string) error {
	for _, text := range strings.Split(value, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		*into = append(*into, prefix.Masked())
	}
	return nil
}
