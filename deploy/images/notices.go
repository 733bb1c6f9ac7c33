package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// always are the notices of code that compilers add to programs and that no list of packages contains.
//
//go:embed notices.txt
var always string

// source is an entry of `cargo metadata`: the location and the authors of a crate.
type source struct {
	Name         string   `json:"name"`
	Version      string   `json:"version"`
	Authors      []string `json:"authors"`
	Repository   string   `json:"repository"`
	ManifestPath string   `json:"manifest_path"`
	// Empty for a crate of this workspace.
	Registry string `json:"source"`
}

// licenseFile matches the names of license files.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|unlicense|copying|copyright|notice)`)

// readSources reads the output of `cargo metadata`. The keys are name and version.
func readSources(metadata string) (map[string]source, error) {
	text, err := os.ReadFile(metadata)
	if err != nil {
		return nil, err
	}
	var read struct {
		Packages []source `json:"packages"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, fmt.Errorf("%s: %w", metadata, err)
	}
	sources := map[string]source{}
	for _, crate := range read.Packages {
		sources[crate.Name+" "+crate.Version] = crate
	}
	return sources, nil
}

// notices lists the components of a program or image, with the text of each license that has to be distributed. From a
// choice of licenses it takes the Apache License, which is also the license of this repository; its text is added once.
func (s settings) notices(name string, components []cdx.Component) ([]byte, error) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Third-party software in %s %s\n\n", name, s.version)
	text.WriteString("Under the Apache License 2.0, whose text is in LICENSE:\n\n")
	// Equal texts are added once.
	var texts []string
	users := map[string][]string{}
	for _, component := range components {
		// The notices of SQLite and of the libraries that the compiler links are among those at the end.
		if strings.HasPrefix(component.PackageURL, "pkg:generic/") {
			continue
		}
		label, folder := component.Name+" "+component.Version, ""
		expression := ""
		if component.Licenses != nil {
			expression = (*component.Licenses)[0].Expression
			crate, exists := s.sources[label]
			if !exists {
				return nil, fmt.Errorf("cargo metadata does not list %s", label)
			}
			if crate.Registry == "" {
				continue
			}
			folder = filepath.Dir(crate.ManifestPath)
		} else {
			folder = filepath.Join(s.programs, "modules", component.Name+"@"+component.Version)
		}
		apache := slices.Contains(strings.Split(expression, " OR "), "Apache-2.0")
		if apache {
			fmt.Fprintf(&text, "  %s\n", label)
		}
		found, err := licenses(folder, apache)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", label, err)
		}
		if len(found) == 0 && !apache {
			crate, exists := s.sources[label]
			if !exists {
				return nil, fmt.Errorf("%s: no license file in %s", label, folder)
			}
			found = []string{fmt.Sprintf("%s. Its package contains no license text. %s %s", expression, strings.Join(crate.Authors, ", "), crate.Repository)}
		}
		for _, license := range found {
			if users[license] == nil {
				texts = append(texts, license)
			}
			users[license] = append(users[license], label)
		}
	}
	for _, license := range texts {
		fmt.Fprintf(&text, "\n%s\n%s:\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[license], ", "), license)
	}
	fmt.Fprintf(&text, "\n%s\n%s", strings.Repeat("=", 80), always)
	return text.Bytes(), nil
}

// licenses returns the license files of a folder; only notices if noticesOnly is true, because the license text is then added elsewhere.
func licenses(folder string, noticesOnly bool) ([]string, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range files {
		name := file.Name()
		if !file.Type().IsRegular() || !licenseFile.MatchString(name) || noticesOnly && !strings.HasPrefix(strings.ToLower(name), "notice") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		found = append(found, strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n")))
	}
	return found, nil
}
