package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// sbomTool writes bills of materials. Its sum is in the public log of sums, which the go command asks.
const sbomTool = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"

// boms writes the software bill of materials (SBOM) of each module that gets a tag into the folder to, in CycloneDX's JSON.
// A bill has the modules of the packages that the module's own packages import; what tests import is not in it.
func (r *release) boms(ctx context.Context, to string) (names []string, err error) {
	to, err = filepath.Abs(to)
	if err == nil {
		err = os.MkdirAll(to, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("make the folder of bills of materials: %w", err)
	}
	tool, err := r.installBOMTool(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range r.modules {
		if private(m.dir) {
			continue
		}
		name := filepath.Join(to, bomName(m.path(), r.version))
		if err := r.bom(ctx, tool, m, name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// installBOMTool builds the tool, and makes the tree a repository whose tag is the version: the tool takes it from there.
func (r *release) installBOMTool(ctx context.Context) (tool string, err error) {
	bin := filepath.Join(filepath.Dir(r.tree), "bin")
	if _, err := output(ctx, filepath.Dir(r.tree), append(os.Environ(), "GOBIN="+bin, "GOWORK=off", "GOFLAGS="), "go", "install", sbomTool); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "-A"},
		{"-c", "user.name=release", "-c", "user.email=release@localhost", "-c", "commit.gpgsign=false", "commit", "-q", "-m", r.version},
		{"-c", "tag.gpgsign=false", "tag", r.version},
	} {
		if _, err := output(ctx, r.tree, nil, "git", args...); err != nil {
			return "", err
		}
	}
	return filepath.Join(bin, "cyclonedx-gomod"), nil
}

// bom writes the bill of one module. Its modules of others are those that the release's go.mod has.
func (r *release) bom(ctx context.Context, tool string, m *module, name string) error {
	kind := "library"
	if strings.HasPrefix(m.dir, "cmd/") {
		kind = "application"
	}
	_, err := output(ctx, filepath.Join(r.tree, m.dir), r.env(), tool, "mod", "-json", "-licenses", "-type", kind, "-output", name, ".")
	return err
}

// bomName is the file of a module's bill: github.com/holdfast-go/holdfast/contrib/otel is holdfast-contrib-otel-v0.2.0.cdx.json.
func bomName(path, version string) string {
	_, name, _ := strings.Cut(path, "/holdfast-go/")
	return strings.ReplaceAll(name, "/", "-") + "-" + version + ".cdx.json"
}
