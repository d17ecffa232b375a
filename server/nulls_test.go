package server

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pinfold.dev/api"
)

func TestNullIsNoValue(t *testing.T) {
	for body, bad := range map[string]bool{
		`{"argv":["rm","-rf",null]}`:                                    true,
		`{"argv_b64":[null]}`:                                           true,
		`{"argv":["true"],"env":["A=1",null]}`:                          true,
		`{"argv":["true"],"groups":[null]}`:                             true,
		`{"argv":["true"],"labels":{"a":null}}`:                         true,
		`{"argv":["true"],"RLIMITS":{"core":null}}`:                     true,
		`{"argv":["true"],"pass_fds":[null]}`:                           true,
		`{"argv":["null"],"labels":{"null":"null"}}`:                    false,
		`{"argv":["true"],"env":null,"nice":null,"stdio":{"pty":null}}`: false,
		`{"argv":["true"],"rlimits":null,"stdio":{"stdin":null}}`:       false,
		`{"argv":["true"],"pass_fds":[{"fd":0,"number":null}]}`:         false,
		`{"argv":["true"],"rlimits":{"core":{"soft":null,"hard":1}}}`:   false,
	} {
		var req api.LaunchRequest
		if err := json.Unmarshal([]byte(body), &req); err != nil {
			t.Fatal(body, err)
		}
		if err := noNulls([]byte(body), &req); (err != nil) != bad {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestNullInAnArgvIsRefused(t *testing.T) {
	s, _ := keeping(t)
	c := s.raw(t)
	body := `{"argv":["true",null]}`
	c.send(t, "POST /v1/turns/one/processes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 22\r\n\r\n"+body)
	var b [12]byte
	if _, err := c.in.Read(b[:]); err != nil || string(b[9:]) != "400" {
		t.Errorf("%q (%v)", b[:], err)
	}
}

func TestLimitWithoutSoft(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	for _, c := range []struct{ path, body, bad string }{
		{"/v1/turns/one/processes", `{"argv":["true"],"rlimits":{"as":{"soft":1,"hard":1},"core":{"hard":1}}}`, "core"},
		{"/v1/turns/one/processes", `{"argv":["true"],"RLIMITS":{"core":{"soft":null,"hard":1}}}`, "core"},
		{"/v1/turns/one/processes", `{"argv":["true"],"rlimits":{"nofile":{}}}`, "nofile"},
		{"/v1/turns/one/processes", `{"argv":["true"],"rlimits":{"core":{"soft":0,"hard":0},"as":{"SOFT":-1,"hard":-1}}}`, ""},
		{"/v1/jobs", `{"launch":{"argv":["true"],"rlimits":{"core":{"hard":1}}}}`, "core"},
	} {
		status, body := s.ask(t, "POST", c.path, c.body)
		if refused := strings.Contains(string(body), "does not say soft"); refused != (c.bad != "") || refused && (status != 400 || !strings.Contains(string(body), "rlimits."+c.bad)) {
			t.Errorf("%s: %d %s", c.body, status, body)
		}
	}
}
