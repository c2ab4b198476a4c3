package pgserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/ulikunitz/xz"
)

// unpack makes the folder dir of a jar's content: a jar is a zip, with one tar.xz in it. Nothing is written outside dir.
func unpack(ctx context.Context, jar []byte, dir string) error {
	packed, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return fmt.Errorf("open the jar: %w", err)
	}
	for _, file := range packed.File {
		if !strings.HasSuffix(file.Name, ".txz") {
			continue
		}
		content, err := file.Open()
		if err != nil {
			return fmt.Errorf("open %s: %w", file.Name, err)
		}
		defer content.Close()
		return extract(ctx, content, dir)
	}
	return errors.New("the jar has no .txz")
}

// extract makes the folder dir of a tar.xz. Every user of the machine may enter its folders, whatever the umask is.
func extract(ctx context.Context, packed io.Reader, dir string) error {
	plain, err := xz.NewReader(packed)
	if err != nil {
		return fmt.Errorf("read xz: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Chmod(".", 0o755); err != nil {
		return err
	}
	for entries := tar.NewReader(plain); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = extractEntry(root, entry, entries)
		}
		if err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
	}
}

// extractEntry makes one file, link or folder, and the folders that it is in. root refuses a link that leads out of it.
func extractEntry(root *os.Root, entry *tar.Header, content io.Reader) error {
	name := path.Clean(entry.Name)
	if !fs.ValidPath(name) {
		return fmt.Errorf("%s is no path below the folder", entry.Name)
	}
	switch entry.Typeflag {
	case tar.TypeDir:
		return makeDir(root, name)
	case tar.TypeSymlink:
		if err := makeDir(root, path.Dir(name)); err != nil {
			return err
		}
		return root.Symlink(entry.Linkname, name)
	case tar.TypeReg:
		if err := makeDir(root, path.Dir(name)); err != nil {
			return err
		}
		all, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		return writeProgram(root, name, os.FileMode(entry.Mode)&0o755, all)
	default:
		return fmt.Errorf("%s is neither a file, a link nor a folder", entry.Name)
	}
}

// writeProgram makes a file that may be run at once. A process that another goroutine starts meanwhile would have the file open for writing
// until its own program begins, and Linux runs no such file ("text file busy", https://go.dev/issue/22315): so none is started.
func writeProgram(root *os.Root, name string, mode os.FileMode, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Chmod(mode | 0o444)
	}
	return errors.Join(err, file.Close())
}

// makeDir makes a folder and those that it is in, where they are not there.
func makeDir(root *os.Root, name string) error {
	if info, err := root.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := makeDir(root, path.Dir(name)); err != nil {
		return err
	}
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return root.Chmod(name, 0o755)
}
