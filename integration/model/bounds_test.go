package model

import (
	"flag"
	"os"
	"testing"
	"time"
)

// howLong is how long scenes go on.
func howLong(t *testing.T) time.Duration {
	t.Helper()
	if s := os.Getenv("PINFOLD_MODEL_FOR"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("PINFOLD_MODEL_FOR: %v", err)
		}
		return d
	}
	if testing.Short() {
		return 20 * time.Second
	}
	return 30 * time.Second
}

// rapidDefaults are for scenes that take seconds each, and that time has its part
// in: one at a time, and no attempt to make a failing one smaller.
func rapidDefaults() error {
	checks := "1"
	if testing.Short() {
		checks = "5" // of which rapid makes one
	}
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, v := range map[string]string{"rapid.checks": checks, "rapid.nofailfile": "true", "rapid.shrinktime": "0s"} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, v); err != nil {
			return err
		}
	}
	return nil
}

// seeded tells that one scene is to be tried again.
func seeded() bool { return flag.Lookup("rapid.seed").Value.String() != "0" }
