package main

import "testing"

func TestMemory_AServerIsInMemoryUnlessItIsSaidWhereTemporaryFilesGo(t *testing.T) {
	t.Setenv("TMPDIR", "")
	if dir := memoryDir(); dir != "" && dir != memoryFS { // "": a container has little of it
		t.Errorf("it is in %s", dir)
	}
	t.Setenv("TMPDIR", t.TempDir())
	if dir := memoryDir(); dir != "" {
		t.Errorf("TMPDIR is set, and it is in %s", dir)
	}
}
