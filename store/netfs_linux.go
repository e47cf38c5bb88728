package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// refuseNetworkFolder refuses file systems whose locks do not reach other
// hosts: two writers on one corrupted the database within seconds.
func refuseNetworkFolder(folder string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return err
	}
	switch int64(st.Type) & 0xffffffff {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC, unix.V9FS_MAGIC:
		return fmt.Errorf("%s is on a network file system, where SQLite can corrupt the database; name a file on a local disk under `database:`", folder)
	}
	return nil
}
