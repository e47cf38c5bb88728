package crash

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"llmproxy/proxy/proxytest"
)

// TestADiskThatIsFull fills the file system under a running server.
func TestADiskThatIsFull(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := syscall.Mount("none", folder, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("SKIPPED: NO FILE SYSTEM CAN BE MOUNTED (%v), SO NONE CAN BE FILLED; run this as root", err)
	}
	t.Cleanup(func() { // after the server and the reader, which began later
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Errorf("unmounting %s: %v", folder, err)
		}
	})
	upstream := proxytest.New(t)
	upstream.Reply(proxytest.JSON(200, proxytest.Completion("served all the same")))
	s := setup{Database: filepath.Join(folder, "crash.db"), Instance: "one", Upstream: upstream.URL, Memory: 1 << 20}
	server := start(t, s)
	server.ask(chat("stored before"), inStep(hardStep)...)
	server.kill()
	server = start(t, s) // with nothing in memory: look-ups read the disk
	db := look(t, s.Database)

	filler := filepath.Join(folder, "filler")
	fill(t, filler)
	starved(t, server, upstream)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	recovered(t, server, db, upstream)
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = file.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
}
