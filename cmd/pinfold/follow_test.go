package main

import (
	"context"
	"io"
	"net/http"
	"strconv"
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
	var asked atomic.Int64
	end := time.Now().Add(400 * time.Millisecond)
	path := answering(t, func(w http.ResponseWriter, r *http.Request) {
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
	})
	f := follower{client: &client.Client{Socket: path}, turn: "t", process: "p1", stream: api.StreamStdout, to: io.Discard, follow: true}
	if err := f.copy(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n > 60 {
		t.Errorf("asked %d times in half a second", n)
	}
}

// A stream of which nothing is kept any more, as it is beyond its turn's bound,
// is neither asked for nor told of at each write.
func TestFollowTellsAGapThatGoesOnNowAndThen(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	end := time.Now().Add(400 * time.Millisecond)
	path := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/turns/t/processes/p1/output":
			n := asked.Add(1)
			for _, h := range []string{api.OffsetHeader, api.TotalHeader, api.DroppedHeader} {
				w.Header().Set(h, strconv.FormatInt(n-1, 10))
			}
			w.Header().Set("Trailer", api.NextOffsetHeader)
			w.WriteHeader(http.StatusOK)
			w.Header().Set(api.NextOffsetHeader, strconv.FormatInt(n, 10))
		case time.Now().Before(end):
			_, _ = io.WriteString(w, `{"id":"p1","turn":"t","status":{"state":"running"},"output":{"stdout":{}}}`)
		default:
			_, _ = io.WriteString(w, `{"id":"p1","turn":"t","status":{"state":"exited"},"output":{"stdout":{"eof":true}}}`)
		}
	})
	told, missed := 0, int64(0)
	f := follower{client: &client.Client{Socket: path}, turn: "t", process: "p1", stream: api.StreamStdout, to: io.Discard, follow: true,
		gap: func(from, to int64) { told, missed = told+1, missed+to-from }}
	if err := f.copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n > 20 || missed != n || told > 3 {
		t.Errorf("asked %d times, told %d times of %d bytes", n, told, missed)
	}
}
