package main

import (
	"fmt"
	"os"
	"path/filepath"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// write writes the layout of an image with all architectures into a folder with the name of the image, and returns the
// image's lines of digests.txt. It also writes a bill of materials for each architecture beside the folder, and the bill
// of materials and the notices of our program into programs/<arch>.
func (s settings) write(i image) (string, error) {
	folder := filepath.Join(s.out, i.name)
	if err := os.RemoveAll(folder); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s/%s:%s", s.registry, i.name, s.version)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var lines string
	for _, arch := range s.archs {
		img, err := s.build(i, arch)
		if err != nil {
			return "", fmt.Errorf("%s: %w", arch, err)
		}
		digest, err := img.Digest()
		if err != nil {
			return "", err
		}
		lines += fmt.Sprintf("%s %s linux/%s\n", digest, name, arch)
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return "", err
	}
	names := map[string]string{
		"org.opencontainers.image.ref.name": s.version,
		// The name that `ctr images import` gives the image.
		"io.containerd.image.name": name,
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s\n%s", digest, name, lines), nil
}

// build returns the image for one architecture.
func (s settings) build(i image, arch string) (v1.Image, error) {
	if err := s.checkSize(i, arch); err != nil {
		return nil, err
	}
	components, err := s.components(i, arch, true)
	if err != nil {
		return nil, err
	}
	bill, err := s.billOfMaterials(i.name, cdx.ComponentTypeContainer, arch, components, nil)
	if err != nil {
		return nil, err
	}
	if err := s.writeFile(fmt.Sprintf("%s-%s.cdx.json", i.name, arch), bill); err != nil {
		return nil, err
	}
	if err := s.describeProgram(i, arch); err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, part := range []struct {
		files []file
		what  string
	}{{i.foreign, "plugins of the CNI project"}, {i.own, "programs of this project"}} {
		if len(part.files) == 0 {
			continue
		}
		archive := newArchive(s.created)
		for _, f := range part.files {
			if err := archive.add(f, filepath.Join(s.programs, arch)); err != nil {
				return nil, err
			}
		}
		if part.what == "programs of this project" {
			notices, err := s.notices(i.name, components)
			if err != nil {
				return nil, err
			}
			if err := s.writeFile(i.name+".THIRD-PARTY", notices); err != nil {
				return nil, err
			}
			archive.addText("licenses/THIRD-PARTY", notices)
			archive.addText(fmt.Sprintf("usr/share/sbom/%s.cdx.json", i.name), bill)
			if err := s.addLicenses(archive); err != nil {
				return nil, err
			}
		}
		layer, err := archive.layer()
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: v1.Time{Time: s.created}, CreatedBy: "deploy/images", Comment: part.what}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer}); err != nil {
			return nil, err
		}
	}
	return s.configure(img, i, arch)
}

// checkSize fails if our programs exceed the size limit. Every node has to load the images.
func (s settings) checkSize(i image, arch string) error {
	var size int64
	for _, f := range i.own {
		if f.program == "" {
			continue
		}
		info, err := os.Stat(filepath.Join(s.programs, arch, f.program))
		if err != nil {
			return err
		}
		size += info.Size()
	}
	if size > s.most {
		return fmt.Errorf("our programs have %d bytes, but an image may have at most %d", size, s.most)
	}
	return nil
}

// describeProgram writes the bill of materials and the notices of our program without the other programs of the image.
func (s settings) describeProgram(i image, arch string) error {
	components, err := s.components(i, arch, false)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(filepath.Join(s.programs, arch, i.program))
	if err != nil {
		return err
	}
	bill, err := s.billOfMaterials(i.program, cdx.ComponentTypeApplication, arch, components, sha256Of(program))
	if err != nil {
		return err
	}
	if err := s.writeFile(filepath.Join("programs", arch, i.program+".cdx.json"), bill); err != nil {
		return err
	}
	notices, err := s.notices(i.program, components)
	if err != nil {
		return err
	}
	return s.writeFile(filepath.Join("programs", arch, i.program+".THIRD-PARTY"), notices)
}

// writeFile writes a file below the output folder.
func (s settings) writeFile(name string, content []byte) error {
	file := filepath.Join(s.out, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

// addLicenses adds the license of this repository.
func (s settings) addLicenses(archive *archive) error {
	licenses, err := os.ReadDir(filepath.Join(s.programs, "licenses"))
	if err != nil {
		return err
	}
	for _, license := range licenses {
		content, err := os.ReadFile(filepath.Join(s.programs, "licenses", license.Name()))
		if err != nil {
			return err
		}
		archive.addText("licenses/"+license.Name(), content)
	}
	return nil
}

// configure sets the configuration and the labels of the image.
func (s settings) configure(img v1.Image, i image, arch string) (v1.Image, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: s.created}
	config.Config = *i.config.DeepCopy()
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":       i.name,
		"org.opencontainers.image.description": i.description,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.created":     s.created.Format("2006-01-02T15:04:05Z"),
	}
	if s.revision != "" {
		config.Config.Labels["org.opencontainers.image.revision"] = s.revision
	}
	return mutate.ConfigFile(img, config)
}
