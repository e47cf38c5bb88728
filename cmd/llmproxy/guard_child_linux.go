package main

import "syscall"

// childAttributes makes a command that ends when the thread that started it
// does, in a process group of its own if group is true.
func childAttributes(group bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: group, Pdeathsig: syscall.SIGKILL}
}
