package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// A process that runs, whose output nobody keeps any more since its keeper was
// killed, is asked for at a measured pace.
func TestFollowAsksAtAPace(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	end := time.Now().Add(400 * time.Millisecond)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch {
		case r.URL.Path == "/v1/turns/t/processes/p1/output":
			for _, h := range []string{api.OffsetHeader, api.TotalHeader, api.DroppedHeader} {
				w.Header().Set(h, "0")
			}
			w.Header().Set("Trailer", api.NextOffsetHeader)
			w.WriteHeader(http.StatusOK)
			w.Header().Set(api.NextOffsetHeader, "0")
		case time.Now().Before(end):
			_, _ = io.WriteString(w, `{"id":"p1","turn":"t","status":{"state":"running"},"output":{"stdout":{}}}`)
		default:
			_, _ = io.WriteString(w, `{"id":"p1","turn":"t","status":{"state":"exited"},"output":{"stdout":{}}}`)
		}
	})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	f := follower{client: &client.Client{Socket: path}, turn: "t", process: "p1", stream: api.StreamStdout, to: io.Discard, follow: true}
	if err := f.copy(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n > 60 {
		t.Errorf("asked %d times in half a second", n)
	}
}
