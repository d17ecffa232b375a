package token

import (
	"errors"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// errYoung tells that another process could still start with the same number
// in the same second: ps(1) could not tell them apart.
var errYoung = errors.New("started within this second, and ps tells no more than the second")

// settle reads until the second is over in which the process started. Who
// started in a later one is another process, and nobody can start in this one
// any more, unless the clock is set back.
func settle(read func() (api.Identity, pidfd.Life, error)) (api.Identity, pidfd.Life, error) {
	for n := 0; ; n++ {
		id, life, err := read()
		if !errors.Is(err, errYoung) || n == 3 {
			return id, life, err
		}
		now := time.Now()
		time.Sleep(now.Truncate(time.Second).Add(time.Second + 10*time.Millisecond).Sub(now))
	}
}
