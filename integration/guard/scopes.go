package guard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pinfold.dev/cgroup"
)

// remadeAfter is longer than systemd takes from making a scope's directory to
// putting a process into it.
const remadeAfter = 3 * time.Second

// Scopes are the directories that turns' scopes have below a mount of cgroup v2.
// One that nobody is in and that has not the mark of a turn is none: systemd has
// made it once more for a scope that is over. It is removed, as the next start of
// a service would, once it has been there for some time: systemd makes the directory
// of a scope that begins before anybody is in it.
func Scopes(mount string) (out []string) {
	for _, p := range below(mount) {
		base := filepath.Base(p)
		if !strings.HasPrefix(base, "pinfold-") || !strings.HasSuffix(base, ".scope") {
			continue
		}
		d, err := cgroup.Open(p)
		if err != nil {
			continue // gone meanwhile
		}
		_, unmarked := d.Nonce()
		d.Close()
		fi, err := os.Stat(p)
		if unmarked != nil && err == nil && time.Since(fi.ModTime()) > remadeAfter {
			if err := os.Remove(p); err == nil || errors.Is(err, fs.ErrNotExist) { // rmdir: never a populated one
				continue
			}
		}
		out = append(out, p)
	}
	return out
}
