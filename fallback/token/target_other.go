//go:build !darwin && !freebsd && !windows

package token

import (
	"errors"

	"pinfold.dev/api"
)

func open(pid int) (target, error) { return nil, errors.ErrUnsupported }

func boot() string { return "" }

func parentOf(pid int) int { return 0 }

func refuseHere(pid int) error { return nil }

func foreignRecord(rec api.Identity) string { return "this system has no start tokens here" }
