package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// components returns the crates of our program, and with foreign also the Go modules of the other programs, sorted.
func (s settings) components(i image, arch string, foreign bool) ([]cdx.Component, error) {
	components := map[string]cdx.Component{}
	tree, err := os.ReadFile(filepath.Join(s.programs, "crates", i.crate))
	if err != nil {
		return nil, err
	}
	if err := addCrates(components, string(tree)); err != nil {
		return nil, fmt.Errorf("crates of %s: %w", i.crate, err)
	}
	for _, f := range i.foreign {
		if !foreign {
			break
		}
		if err := addModules(components, filepath.Join(s.programs, arch, f.program)); err != nil {
			return nil, err
		}
	}
	sorted := make([]cdx.Component, 0, len(components))
	for _, component := range components {
		sorted = append(sorted, component)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].BOMRef < sorted[j].BOMRef })
	return sorted, nil
}

// billOfMaterials returns a CycloneDX document with the components of a program or image.
func (s settings) billOfMaterials(name string, kind cdx.ComponentType, arch string, components []cdx.Component) ([]byte, error) {
	bom := cdx.NewBOM()
	// There is no serial number, because it would differ in each build.
	bom.Metadata = &cdx.Metadata{
		Timestamp: s.created.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: name, Type: kind, Name: name, Version: s.version,
			Properties: &[]cdx.Property{{Name: "architecture", Value: arch}},
		},
	}
	bom.Components = &components
	var text bytes.Buffer
	encoder := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := encoder.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// addCrates adds the crates of the lines `name v1.2.3 (proc-macro) (/path);license`.
func addCrates(components map[string]cdx.Component, tree string) error {
	for _, line := range strings.Split(strings.TrimSpace(tree), "\n") {
		name, license, found := strings.Cut(strings.TrimSuffix(line, " (*)"), ";")
		words := strings.Fields(name)
		if !found || len(words) < 2 || !strings.HasPrefix(words[1], "v") {
			return fmt.Errorf("invalid line of cargo tree: %q", line)
		}
		component := library("cargo", words[0], strings.TrimPrefix(words[1], "v"))
		if license != "" {
			// Some crates separate alternatives with the old syntax.
			expression := strings.ReplaceAll(license, "/", " OR ")
			component.Licenses = &cdx.Licenses{{Expression: expression}}
		}
		components[component.BOMRef] = component
	}
	return nil
}

// addModules adds the modules that Go's linker recorded in a program.
func addModules(components map[string]cdx.Component, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	toolchain := library("golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	components[toolchain.BOMRef] = toolchain
	// The list of dependencies does not contain the program's own module.
	for _, module := range append(info.Deps, &info.Main) {
		if module.Replace != nil {
			module = module.Replace
		}
		component := library("golang", module.Path, module.Version)
		components[component.BOMRef] = component
	}
	return nil
}

func library(kind, name, version string) cdx.Component {
	url := fmt.Sprintf("pkg:%s/%s@%s", kind, name, version)
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url}
}
