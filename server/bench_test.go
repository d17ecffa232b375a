package server

import (
	"context"
	"os"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// What the socket itself costs: a round trip on a connection that is open, and
// a launch with descriptors, which makes a connection of its own.
func BenchmarkRoundTrip(b *testing.B) {
	s := start(b, Config{})
	c := &client.Client{Socket: s.socket}
	defer c.Close()
	for b.Loop() {
		if _, err := c.Host(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLaunchWithDescriptors(b *testing.B) {
	s := start(b, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	c := &client.Client{Socket: s.socket}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	for b.Loop() {
		if _, err := c.Launch(context.Background(), "one", api.LaunchRequest{Argv: []string{"x"}}, null, null, null); err != nil {
			b.Fatal(err)
		}
	}
}
