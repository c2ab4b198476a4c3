package pgserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// downloadVersion is what is downloaded where there is no PostgreSQL: Zonky's build, which Maven Central keeps.
const downloadVersion = "18.3.0"

// pinnedSums are the SHA-256 sums of the archives that may be unpacked and run, by version and platform. The archive's
// host serves a checksum too, which protects against nothing: whoever changes the one changes the other.
//
// docs/project/releasing.md#the-binaries-of-postgresql says how a new version gets its sums.
var pinnedSums = map[string]string{
	"18.3.0 darwin-amd64":       "cb68c57232945f5e74db946e6077d70cec56bfed35959b21acc750cc80ca0977",
	"18.3.0 darwin-arm64v8":     "a18ec9ec6a905e04f5a08a8f7870bddadd635feb54dee332a3daf80fada3cb1a",
	"18.3.0 linux-amd64":        "1974c3a59c3ae010e9818e81637e425aad94eaac26e4ef533b42e081fe7ca345",
	"18.3.0 linux-amd64-alpine": "510fd314da39f1eeccef774a92428474168fedf55403342548e2adeaed66b483",
	"18.3.0 linux-arm64v8":      "1fb555a6602c13a113ab1f0cc9224d599948e85e51ac5f001393605505eaf78e",
	"18.3.0 windows-amd64":      "e1e2bb484f775c0b70fbde39c69451a7a4925629a85d622f557fe6f60de37ba1",
}

// archive is a download whose sum is known beforehand.
type archive struct {
	version, platform string
	sum               string // SHA-256, in hexadecimal
}

// pinnedArchive is the archive of a version for a platform, out of those that sums knows.
func pinnedArchive(version, platform string, sums map[string]string) (archive, error) {
	sum, known := sums[version+" "+platform]
	if !known {
		return archive{}, fmt.Errorf("no SHA-256 is pinned for PostgreSQL %s on %s, so it is not downloaded: there are %s",
			version, platform, strings.Join(slices.Sorted(maps.Keys(sums)), ", "))
	}
	return archive{version, platform, sum}, nil
}

// check says whether content is the archive.
func (a archive) check(content []byte) error {
	sum := sha256.Sum256(content)
	if got := hex.EncodeToString(sum[:]); got != a.sum {
		return fmt.Errorf("the SHA-256 of PostgreSQL %s for %s is %s, and %s is pinned: it was not unpacked", a.version, a.platform, got, a.sum)
	}
	return nil
}

// path is where the archive is in a repository in the layout of Maven.
func (a archive) path() string {
	name := "embedded-postgres-binaries-" + a.platform
	return fmt.Sprintf("io/zonky/test/postgres/%s/%s/%s-%s.jar", name, a.version, name, a.version)
}

// dirName names the folder of what was unpacked. It has a part of the sum, so that what an older build unpacked
// without a check is not used.
func (a archive) dirName() string {
	return fmt.Sprintf("postgres-%s-%s-%s", a.version, a.platform, a.sum[:12])
}

// platformName is how Zonky calls a system: "linux-arm64v8".
func platformName(goos, goarch string, alpine bool) string {
	if goarch == "arm64" && goos != "windows" {
		goarch = "arm64v8"
	}
	if goos == "linux" && alpine {
		goarch += "-alpine"
	}
	return goos + "-" + goarch
}
