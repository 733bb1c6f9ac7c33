package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// archive collects the entries of a layer by path. All entries have the same modification time.
type archive struct {
	time    time.Time
	headers map[string]tar.Header
	content map[string][]byte
}

func newArchive(time time.Time) *archive {
	return &archive{time: time, headers: map[string]tar.Header{}, content: map[string][]byte{}}
}

// add adds a file, a link or a folder. It reads programs from the folder programs.
func (a *archive) add(f file, programs string) error {
	header := tar.Header{Name: f.path, Mode: 0o755, Uid: f.owner, Gid: f.owner}
	switch {
	case strings.HasSuffix(f.path, "/"):
		header.Typeflag = tar.TypeDir
	case f.link != "":
		header.Typeflag, header.Linkname = tar.TypeLink, f.link
	default:
		content, err := os.ReadFile(filepath.Join(programs, f.program))
		if err != nil {
			return err
		}
		header.Typeflag = tar.TypeReg
		a.content[f.path] = content
	}
	a.put(header)
	return nil
}

// addText adds a file that every user may read.
func (a *archive) addText(name string, content []byte) {
	a.content[name] = content
	a.put(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644})
}

// put adds a header, and a header for each parent folder.
func (a *archive) put(header tar.Header) {
	header.ModTime, header.Format = a.time, tar.FormatUSTAR
	a.headers[header.Name] = header
	for folder := path.Dir(strings.TrimSuffix(header.Name, "/")); folder != "."; folder = path.Dir(folder) {
		name := folder + "/"
		if _, there := a.headers[name]; !there {
			a.headers[name] = tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: a.time, Format: tar.FormatUSTAR}
		}
	}
}

// layer returns the archive as a compressed layer. Links come after all files, because their targets must exist.
func (a *archive) layer() (v1.Layer, error) {
	names := make([]string, 0, len(a.headers))
	for name := range a.headers {
		names = append(names, name)
	}
	isLink := func(name string) bool { return a.headers[name].Typeflag == tar.TypeLink }
	sort.Slice(names, func(i, j int) bool {
		if isLink(names[i]) != isLink(names[j]) {
			return isLink(names[j])
		}
		return names[i] < names[j]
	})
	var text bytes.Buffer
	writer := tar.NewWriter(&text)
	for _, name := range names {
		header := a.headers[name]
		header.Size = int64(len(a.content[name]))
		if err := writer.WriteHeader(&header); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := writer.Write(a.content[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}
