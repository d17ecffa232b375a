package users

import (
	"os"
	"path/filepath"
	"testing"
)

func TestByName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passwd")
	text := "root:x:0:0:root:/root:/bin/bash\n#no:x:1:1::/:/\nbroken:x:zero:0::/:/bin/sh\n" +
		"agent:x:4242:4243:An Agent,,,:/home/agent:\nshort:x:1\nlast:x:5:5::/:/bin/false"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := Database{Passwd: path}
	u, err := d.ByName("agent")
	if err != nil || u.UID != 4242 || u.GID != 4243 || u.Home != "/home/agent" || u.Shell != "/bin/sh" {
		t.Errorf("agent is %+v (%v)", u, err)
	}
	if len(u.Groups) == 0 || u.Groups[0] != 4243 {
		t.Errorf("groups of agent are %v, the primary one is missing", u.Groups)
	}
	if u, err := d.ByName("5"); err != nil || u.Name != "last" {
		t.Errorf("uid 5 is %+v (%v)", u, err)
	}
	if err := os.WriteFile(path, []byte(text+"\nnew:x:77:77::/:/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := d.ByUID(77); err != nil || u.Name != "new" {
		t.Errorf("a user that is new is %+v (%v)", u, err)
	}
	for _, name := range []string{"broken", "short", "#no", "", "6", "-1", "4294967296"} {
		if u, err := d.ByName(name); err == nil {
			t.Errorf("%q was found: %+v", name, u)
		}
	}
}

func TestGroup(t *testing.T) {
	var d Database
	if gid, err := d.Group("root"); err != nil || gid != 0 {
		t.Errorf("root: %d (%v)", gid, err)
	}
	if gid, err := d.Group("987654"); err != nil || gid != 987654 {
		t.Errorf("a number without an entry: %d (%v)", gid, err)
	}
	for _, name := range []string{"", "no-such-group", "-1", "4294967296"} {
		if gid, err := d.Group(name); err == nil {
			t.Errorf("%q: %d", name, gid)
		}
	}
}
