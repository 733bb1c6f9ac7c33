package main

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// write puts the layout of an image, with all its architectures, into a folder of the image's name, and returns the digest of
// its index. A bill of materials for each architecture is put beside it.
func (s settings) write(i image) (v1.Hash, error) {
	folder := filepath.Join(s.out, i.name)
	if err := os.RemoveAll(folder); err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range s.archs {
		img, err := s.build(i, arch)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s: %w", arch, err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	names := map[string]string{
		"org.opencontainers.image.ref.name": s.version,
		// What `ctr images import` calls it.
		"io.containerd.image.name": fmt.Sprintf("%s/%s:%s", s.registry, i.name, s.version),
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// build makes the image of one architecture.
func (s settings) build(i image, arch string) (v1.Image, error) {
	bill, err := s.billOfMaterials(i, arch)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.out, fmt.Sprintf("%s-%s.cdx.json", i.name, arch)), bill, 0o644); err != nil {
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
			if err := s.addTexts(archive, i, bill); err != nil {
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

// addTexts puts in the licences and the bill of materials.
func (s settings) addTexts(archive *archive, i image, bill []byte) error {
	archive.addText(fmt.Sprintf("usr/share/sbom/%s.cdx.json", i.name), bill)
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

// configure says how the image is run.
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
	return mutate.ConfigFile(img, config)
}
