package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sqliteVersion matches the version in sqlite3.h.
var sqliteVersion = regexp.MustCompile(`(?m)^#define SQLITE_VERSION +"([0-9.]+)"`)

// components returns the crates of our program and the libraries linked into it, and with foreign also the Go modules of
// the other programs, sorted.
func (s settings) components(i image, arch string, foreign bool) ([]cdx.Component, error) {
	components := map[string]cdx.Component{}
	tree, err := os.ReadFile(filepath.Join(s.programs, "crates", arch, i.crate))
	if err != nil {
		return nil, err
	}
	if err := s.addCrates(components, string(tree)); err != nil {
		return nil, fmt.Errorf("crates of %s: %w", i.crate, err)
	}
	linked, err := os.ReadFile(filepath.Join(s.programs, "linked", arch))
	if err != nil {
		return nil, err
	}
	if err := addLinked(components, string(linked)); err != nil {
		return nil, fmt.Errorf("libraries of %s: %w", arch, err)
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

// billOfMaterials returns a CycloneDX document with the components of a program or image. An image contains its own
// document, so only a program's document has the hash of its subject.
func (s settings) billOfMaterials(name string, kind cdx.ComponentType, arch string, components []cdx.Component, hashes *[]cdx.Hash) ([]byte, error) {
	bom := cdx.NewBOM()
	// There is no serial number, because it would differ in each build.
	bom.Metadata = &cdx.Metadata{
		Timestamp: s.created.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: name, Type: kind, Name: name, Version: s.version, Hashes: hashes,
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

// addCrates adds the crates of the lines `name v1.2.3 (proc-macro) (/path);license`, and SQLite, whose source a crate
// contains.
func (s settings) addCrates(components map[string]cdx.Component, tree string) error {
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
		label := component.Name + " " + component.Version
		if sum, exists := s.checksums[label]; exists {
			component.Hashes = sha256Hash(sum)
		}
		components[component.BOMRef] = component
		if component.Name == "libsqlite3-sys" {
			sqlite, err := sqliteIn(filepath.Join(filepath.Dir(s.sources[label].ManifestPath), "sqlite3"))
			if err != nil {
				return err
			}
			components[sqlite.BOMRef] = sqlite
		}
	}
	return nil
}

// sqliteIn returns SQLite, from a folder with its source in one file.
func sqliteIn(folder string) (cdx.Component, error) {
	header, err := os.ReadFile(filepath.Join(folder, "sqlite3.h"))
	if err != nil {
		return cdx.Component{}, err
	}
	version := sqliteVersion.FindSubmatch(header)
	if version == nil {
		return cdx.Component{}, fmt.Errorf("%s/sqlite3.h has no SQLITE_VERSION", folder)
	}
	source, err := os.ReadFile(filepath.Join(folder, "sqlite3.c"))
	if err != nil {
		return cdx.Component{}, err
	}
	component := library("generic", "sqlite", string(version[1]))
	component.Licenses = &cdx.Licenses{{Expression: "blessing"}}
	component.Hashes = sha256Of(source)
	return component, nil
}

// addLinked adds the libraries of the lines `name version license sha256`, in which the license has no spaces.
func addLinked(components map[string]cdx.Component, lines string) error {
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 4 {
			return fmt.Errorf("invalid line: %q", line)
		}
		component := library("generic", words[0], words[1])
		component.Licenses = &cdx.Licenses{{Expression: strings.ReplaceAll(words[2], "/", " OR ")}}
		component.Hashes = sha256Hash(words[3])
		components[component.BOMRef] = component
	}
	return nil
}

// ownModule is the module of this program and of our plugin flannel.
const ownModule = "calico.example/deploy/images"

// addModules adds the modules of others that Go's linker recorded in a program.
func addModules(components map[string]cdx.Component, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	toolchain := library("golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	components[toolchain.BOMRef] = toolchain
	// The list of dependencies does not contain the program's own module.
	for _, module := range append(info.Deps, &info.Main) {
		if module.Path == ownModule {
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		component := library("golang", module.Path, module.Version)
		// The checksum of go.sum, which is a SHA-256 of the list of the module's files.
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) > 0 {
			component.Hashes = sha256Hash(hex.EncodeToString(sum))
		}
		components[component.BOMRef] = component
	}
	return nil
}

// readChecksums reads the SHA-256 of the packages of crates from a Cargo.lock. The keys are name and version.
func readChecksums(lock string) (map[string]string, error) {
	text, err := os.ReadFile(lock)
	if err != nil {
		return nil, err
	}
	checksums := map[string]string{}
	for _, entry := range strings.Split(string(text), "[[package]]") {
		fields := map[string]string{}
		for _, line := range strings.Split(entry, "\n") {
			if key, value, found := strings.Cut(line, " = "); found {
				fields[key] = strings.Trim(value, `"`)
			}
		}
		if sum := fields["checksum"]; sum != "" {
			checksums[fields["name"]+" "+fields["version"]] = sum
		}
	}
	return checksums, nil
}

func sha256Of(content []byte) *[]cdx.Hash {
	sum := sha256.Sum256(content)
	return sha256Hash(hex.EncodeToString(sum[:]))
}

func sha256Hash(digits string) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digits}}
}

func library(kind, name, version string) cdx.Component {
	url := fmt.Sprintf("pkg:%s/%s@%s", kind, name, version)
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url}
}
