//go:build !linux

package main

import "syscall"

// childAttributes makes a command in a process group of its own if group is
// true. Only Linux can end it with this process: elsewhere a command whose guard
// run was killed goes on, so its lease may end before it does.
func childAttributes(group bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: group}
}
