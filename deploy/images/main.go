// Command images writes the images cni and kube-controllers as OCI image layouts, from programs that are already built.
//
// It needs no container engine and runs no other program. The same programs, version and time give the same digests.
//
//	images -programs DIR -arch amd64,arm64 -version v1.2.3 -epoch 1700000000 -out DIR
//
// The folder of -programs contains:
//
//	<arch>/                    the programs of an architecture
//	licenses/                  the files for /licenses in the images
//	crates/<arch>/<package>    the crates of a program: output of `cargo tree --prefix none --format '{p};{l}'`
//	linked/<arch>              the libraries that the compiler links: lines `name version license sha256`
//	modules/<path>@<version>/  the licenses of a Go module
//	metadata.json              output of `cargo metadata`
//	Cargo.lock                 the checksums of the crates
//
// Beside the layouts, digests.txt has a line `digest name:version` for each image, and one with ` linux/<arch>` at its end
// for each architecture.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// settings are the values of the command line, and the crates in metadata.json.
type settings struct {
	programs string
	archs    []string
	version  string
	registry string
	created  time.Time
	// Commit from which the programs were built; empty if it is unknown.
	revision string
	// Maximum number of bytes of our own programs in an image.
	most int64
	out  string
	// Crates by name and version.
	sources map[string]source
	// SHA-256 of the packages of crates, by name and version.
	checksums map[string]string
}

func main() {
	var s settings
	var archs string
	var epoch int64
	flag.StringVar(&s.programs, "programs", "", "folder with the programs of each architecture")
	flag.StringVar(&archs, "arch", "amd64,arm64", "architectures, by Go's names")
	flag.StringVar(&s.version, "version", "", "tag of the images")
	flag.StringVar(&s.registry, "registry", "registry.example.com/calico", "prefix of the name of each image")
	flag.Int64Var(&epoch, "epoch", 0, "when everything was made, in seconds since 1970")
	flag.StringVar(&s.revision, "revision", "", "commit from which the programs were built")
	flag.Int64Var(&s.most, "most", 12<<20, "maximum number of bytes of our own programs in an image")
	flag.StringVar(&s.out, "out", "", "folder for the layouts")
	flag.Parse()
	if s.programs == "" || s.version == "" || s.out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	s.archs, s.created = strings.Split(archs, ","), time.Unix(epoch, 0).UTC()
	var err error
	if s.sources, err = readSources(filepath.Join(s.programs, "metadata.json")); err != nil {
		fail(err)
	}
	if s.checksums, err = readChecksums(filepath.Join(s.programs, "Cargo.lock")); err != nil {
		fail(err)
	}
	var digests string
	for _, image := range images {
		lines, err := s.write(image)
		if err != nil {
			fail(fmt.Errorf("%s: %w", image.name, err))
		}
		digests += lines
	}
	if err := s.writeFile("digests.txt", []byte(digests)); err != nil {
		fail(err)
	}
	fmt.Print(digests)
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "images: %v\n", err)
	os.Exit(1)
}
