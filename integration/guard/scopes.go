package guard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pinfold.dev/cgroup"
)

// Scopes are the directories that turns' scopes have below a mount of cgroup v2.
// One that nobody is in and that has not the mark of a turn is none: systemd has
// made it once more for a scope that is over. It is removed, as the next start of
// a service would.
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
		_, marked := d.Nonce()
		d.Close()
		if marked != nil {
			if err := os.Remove(p); err == nil || errors.Is(err, fs.ErrNotExist) { // rmdir: never a populated one
				continue
			}
		}
		out = append(out, p)
	}
	return out
}
