// Command flannel is the CNI plugin `flannel`, which Canal with etcd needs. It runs another plugin, such as `calico`,
// with the subnet that flanneld has given to the node.
//
// The plugin of the flannel project is no dependency, because the builds of this repository cannot download its module.
// This program reads the same configuration and flanneld's file, and keeps the same files, so that each of the two
// programs can delete the pods of the other.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// object is a JSON object.
type object = map[string]any

// conf is the configuration of a network.
type conf struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`
	IPAM          object          `json:"ipam"`
	SubnetFile    string          `json:"subnetFile"`
	DataDir       string          `json:"dataDir"`
	Delegate      object          `json:"delegate"`
	RuntimeConfig object          `json:"runtimeConfig"`
	PrevResult    json.RawMessage `json:"prevResult"`
}

func main() {
	calls := skel.CNIFuncs{Add: add, Check: check, Del: del, Status: status}
	skel.PluginMainFuncs(calls, version.All, "CNI plugin flannel of Calico's image")
}

// add runs ADD of the delegate, whose configuration it stores before for CHECK and DEL.
func add(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	delegate, err := c.delegate()
	if err != nil {
		return err
	}
	text, err := json.Marshal(delegate)
	if err != nil {
		return err
	}
	if err := c.store(args.ContainerID, text); err != nil {
		return err
	}
	result, err := invoke.DelegateAdd(context.Background(), delegate["type"].(string), text, nil)
	if err != nil {
		return fmt.Errorf("ADD of the delegate %s: %w", delegate["type"], err)
	}
	return result.Print()
}

// check runs CHECK of the delegate with the stored configuration and the result of the runtime.
func check(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	delegate, err := c.stored(args.ContainerID)
	if err != nil {
		return err
	}
	delegate["prevResult"] = c.PrevResult
	return c.run(delegate, invoke.DelegateCheck)
}

// del runs DEL of the delegate. A container without a stored configuration had no ADD, or its DEL has succeeded. If the
// stored configuration is damaged, the present one replaces it.
func del(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	delegate, err := c.stored(args.ContainerID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		present, unusable := c.delegate()
		if unusable != nil {
			return fmt.Errorf("%w; %w", err, unusable)
		}
		delegate = present
	}
	if err := c.run(delegate, invoke.DelegateDel); err != nil {
		return err
	}
	if err := os.Remove(c.file(args.ContainerID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// status succeeds if an ADD could read the subnet of the node, and if the delegate is ready.
func status(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	delegate, err := c.delegate()
	if err != nil {
		return types.NewError(50, "flannel cannot add pods now", err.Error())
	}
	return c.run(delegate, invoke.DelegateStatus)
}

func parse(text []byte) (*conf, error) {
	c := &conf{SubnetFile: "/run/flannel/subnet.env", DataDir: "/var/lib/cni/flannel"}
	if err := decode(text, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cannot read the configuration", err.Error())
	}
	return c, nil
}

// decode parses JSON and keeps numbers as they are written.
func decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// run runs a call of the delegate that prints nothing.
func (c *conf) run(delegate object, call func(context.Context, string, []byte, invoke.Exec) error) error {
	text, err := json.Marshal(delegate)
	if err != nil {
		return err
	}
	if err := call(context.Background(), delegate["type"].(string), text, nil); err != nil {
		return fmt.Errorf("%s of the delegate %s: %w", os.Getenv("CNI_COMMAND"), delegate["type"], err)
	}
	return nil
}

// file returns the path of a container's stored configuration.
func (c *conf) file(container string) string { return filepath.Join(c.DataDir, container) }

// store writes the configuration of a container, at once as a whole.
func (c *conf) store(container string, text []byte) error {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return err
	}
	draft, err := os.CreateTemp(c.DataDir, ".draft-")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	_, err = draft.Write(text)
	if err = errors.Join(err, draft.Sync(), draft.Close()); err != nil {
		return err
	}
	return os.Rename(draft.Name(), c.file(container))
}

// stored reads the configuration of a container.
func (c *conf) stored(container string) (object, error) {
	text, err := os.ReadFile(c.file(container))
	if err != nil {
		return nil, err
	}
	var delegate object
	if err := decode(text, &delegate); err != nil {
		return nil, fmt.Errorf("%s: %w", c.file(container), err)
	}
	if _, isText := delegate["type"].(string); !isText {
		return nil, fmt.Errorf("%s names no plugin", c.file(container))
	}
	return delegate, nil
}
