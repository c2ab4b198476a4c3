// Package process names the process that a row of the database is of.
package process

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
)

// Name names this process for people, who look for its host (a pod, in Kubernetes), and for other processes, which must not have the
// same name: host, process id, and four random bytes. A new call returns a new name. what stands for a host that has no name.
func Name(what string) string {
	host, err := os.Hostname()
	if err != nil {
		host = what
	}
	var b [4]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return fmt.Sprintf("%.200s/%d/%s", host, os.Getpid(), hex.EncodeToString(b[:]))
}
