package api

// Host answers GET /v1/host: what doctor prints.
type Host struct {
	Version     string      `json:"version"`
	Kernel      string      `json:"kernel"`
	Boot        string      `json:"boot"`
	Grade       Grade       `json:"grade"` // what new turns get
	Asked       Grade       `json:"asked"` // what the service was told to use
	CgroupMount string      `json:"cgroup_mount,omitempty"`
	CgroupRoot  string      `json:"cgroup_parent,omitempty"` // turns are made below
	Controllers []string    `json:"controllers"`
	Systemd     string      `json:"systemd,omitempty"` // version, and which manager
	UID         uint32      `json:"uid"`
	RuntimeDir  string      `json:"runtime_dir"`
	StateDir    string      `json:"state_dir"`
	Turns       int         `json:"turns"` // not terminal
	Checks      []HostCheck `json:"checks"`
}

// HostCheck is one thing that was tried on this host.
type HostCheck struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}
