package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// image is what a Dockerfile makes.
type image struct {
	user       string
	entrypoint []string
	env        []string
}

const packaging = "../../packaging/images"

// rootfs is the root file system of packaging/images, which all bundles share.
func rootfs(t testing.TB) string {
	t.Helper()
	needHost(t)
	return filepath.Join(run.dir, "rootfs")
}

// instruction is a line of a Dockerfile: COPY and the rest.
type instruction struct{ name, rest string }

// dockerfile reads one, by its stages.
func dockerfile() (stages [][]instruction, err error) {
	b, err := os.ReadFile(filepath.Join(packaging, "Dockerfile"))
	if err != nil {
		return nil, err
	}
	text := strings.ReplaceAll(string(b), "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		if name == "FROM" {
			stages = append(stages, nil)
		}
		if len(stages) == 0 {
			return nil, fmt.Errorf("%q comes before any FROM", line)
		}
		last := len(stages) - 1
		stages[last] = append(stages[last], instruction{name, strings.TrimSpace(rest)})
	}
	if len(stages) != 2 {
		return nil, fmt.Errorf("%d stages, 2 are known here", len(stages))
	}
	return stages, nil
}

// describe reads what the Dockerfile's last stage says of containers.
func describe() (im image, err error) {
	stages, err := dockerfile()
	if err != nil {
		return im, err
	}
	for _, i := range stages[1] {
		switch i.name {
		case "FROM", "COPY":
		case "ENV":
			im.env = append(im.env, strings.Fields(i.rest)...)
		case "USER":
			im.user = i.rest
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(i.rest), &im.entrypoint)
		default:
			err = errors.New("not known here")
		}
		if err != nil {
			return im, fmt.Errorf("%s %s: %w", i.name, i.rest, err)
		}
	}
	return im, nil
}

// layOut makes in root what the last stage has, from the programs that make
// build makes. What the first stage makes in /image is made as it says.
func layOut(root, bin string) error {
	stages, err := dockerfile()
	if err != nil {
		return err
	}
	if from := stages[1][0]; from.name != "FROM" || from.rest != "scratch" {
		return fmt.Errorf("%s %s", from.name, from.rest)
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, i := range stages[1] {
		if i.name != "COPY" {
			continue
		}
		if err := copyInto(root, stages[0], i.rest, bin); err != nil {
			return fmt.Errorf("COPY %s: %w", i.rest, err)
		}
	}
	return mountPoints(root)
}

func copyInto(root string, build []instruction, rest, bin string) error {
	words := strings.Fields(rest)
	if len(words) < 3 || words[0] != "--from=build" {
		return errors.New("not known here")
	}
	to := filepath.Join(root, words[len(words)-1])
	for _, from := range words[1 : len(words)-1] {
		switch {
		case from == "/image/":
			for _, i := range build {
				if i.name != "RUN" || !strings.Contains(i.rest, "/image") {
					continue
				}
				if out, err := exec.Command("sh", "-ec", strings.ReplaceAll(i.rest, "/image", root)).CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
		case filepath.Dir(from) == "/src/bin":
			name := filepath.Base(from)
			b, err := os.ReadFile(filepath.Join(bin, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(to, name), b, 0o755)
			}
			if err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: not known here", from)
		}
	}
	return nil
}

// mountPoints are what an engine adds to every image, and this test.
func mountPoints(root string) error {
	for _, dir := range []string{"proc", "dev", "sys", "etc", "usr/local/bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, file := range []string{"gateway", "usr/local/bin/my-gateway", "etc/hosts", "etc/resolv.conf", "etc/hostname"} {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// The image is small, static, and has no user's powers.
func TestImage(t *testing.T) {
	root := rootfs(t)
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		if err == nil && d.Type().IsRegular() && !strings.HasPrefix(rel, "etc/") && filepath.Base(rel) != "gateway" && rel != "usr/local/bin/my-gateway" {
			files = append(files, rel)
		}
		return err
	})
	if err != nil || strings.Join(files, " ") != "usr/bin/pinfold usr/bin/pinfold-init" {
		t.Errorf("it has %q (%v)", files, err)
	}
	if uid, gid, _ := strings.Cut(run.image.user, ":"); uid == "0" || uid == "root" || gid != "0" {
		t.Errorf("it runs as %s", run.image.user)
	}
	if e := run.image.entrypoint; len(e) < 2 || e[0] != "/usr/bin/pinfold-init" || e[len(e)-1] != "--" {
		t.Errorf("entrypoint %q", e)
	}
	for _, dir := range []string{"tmp", "run/pinfold", "var/lib/pinfold"} {
		if fi, err := os.Stat(filepath.Join(root, dir)); err != nil || fi.Mode().Perm() != 0o777 || fi.Mode()&os.ModeSticky == 0 {
			t.Errorf("%s: %v (%v)", dir, fi, err)
		}
	}
}

// Whoever builds it needs nothing but the names of usual images.
func TestDockerfileNamesNoHost(t *testing.T) {
	stages, err := dockerfile()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stages {
		if from := strings.Fields(s[0].rest)[0]; strings.ContainsAny(from, "./@") && !strings.HasPrefix(from, "golang:") {
			t.Errorf("FROM %s", from)
		}
	}
}

// An image that takes the programs from ours takes no variables with them: what the
// docs say to write has each, or what is executed in the container, a probe too,
// does not find the service.
func TestImageOfADocsGateway(t *testing.T) {
	im, err := describe()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{docs, filepath.Join(packaging, "Dockerfile")} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, example, ok := strings.Cut(string(b), "COPY my-gateway")
		example, _, end := strings.Cut(example, "CMD")
		if !ok || !end {
			t.Fatalf("%s has no example of a gateway's image", file)
		}
		for _, v := range im.env {
			if !strings.HasPrefix(v, "PATH=") && !slices.Contains(strings.Fields(example), v) {
				t.Errorf("%s: a gateway's image has no %s", file, v)
			}
		}
	}
}
