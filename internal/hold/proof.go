package hold

import (
	"encoding/json"
	"path/filepath"

	"pinfold.dev/api"
	"pinfold.dev/internal/ownfile"
)

// proof is what a self-test has shown, kept beside the live turns. A service
// that comes back to a host that one of its own turns keeps too busy for
// another self-test goes by it: who else could end that turn?
type proof struct {
	Boot      string `json:"boot"`
	Mechanism string `json:"mechanism"`
	Moves     bool   `json:"moves,omitempty"`
	Gate      bool   `json:"gate,omitempty"`
}

func (h *Host) proofPath(g api.Grade) string {
	return filepath.Join(h.cfg.RuntimeDir, "selftest-"+string(g)+".json")
}

// keepProof is best effort: without a proof, the next start must pass the test.
func (h *Host) keepProof(g api.Grade) {
	h.mu.Lock()
	p := proof{Boot: h.boot, Mechanism: h.mechanism, Moves: h.moves, Gate: h.gate}
	h.mu.Unlock()
	b, err := json.Marshal(p)
	if err == nil && p.Boot != "" {
		err = ownfile.Replace(h.proofPath(g), b, false)
	}
	if err != nil {
		h.log.Warn("keep what the self-test has shown", "error", err)
	}
}

// useProof goes by an earlier self-test of this boot, where there was one.
func (h *Host) useProof(g api.Grade) bool {
	var p proof
	b, err := ownfile.Read(h.proofPath(g), 4096)
	if err != nil || json.Unmarshal(b, &p) != nil || p.Boot == "" || p.Boot != h.boot {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mechanism, h.moves, h.gate = p.Mechanism, p.Moves, p.Gate
	if p.Gate {
		h.notes = append(h.notes, "launches go through a gate, not by CLONE_INTO_CGROUP: an earlier self-test found that they must")
	}
	return true
}
