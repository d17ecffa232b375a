package api

import (
	"encoding/json"
	"testing"
)

// An exit code of 0 is told: nobody has to know that 0 is what is left out. No
// other state is given a code.
func TestStatusJSON(t *testing.T) {
	for want, s := range map[string]Status{
		`{"state":"running"}`:                                       {State: ProcessRunning},
		`{"state":"exited","code":0}`:                               {State: ProcessExited},
		`{"state":"exited","code":7}`:                               {State: ProcessExited, Code: 7},
		`{"state":"lost","why":"gone"}`:                             {State: ProcessLost, Why: "gone"},
		`{"state":"signaled","signal":"SIGKILL","signal_number":9}`: {State: ProcessSignaled, Signal: "SIGKILL", SignalNumber: 9},
	} {
		got, err := json.Marshal(Process{Status: s}.Status)
		if err != nil || string(got) != want {
			t.Errorf("%+v is %s, %v; want %s", s, got, err, want)
		}
		var back Status
		if err := json.Unmarshal(got, &back); err != nil || back != s {
			t.Errorf("%s is read as %+v, %v", got, back, err)
		}
	}
}
