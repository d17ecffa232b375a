package systemd

import (
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

// privateSocket is where PID 1 listens itself, for root only: it is there
// without a bus daemon.
const privateSocket = "/run/systemd/private"

// defaultSystemBus is the system bus's well-known address.
const defaultSystemBus = "unix:path=/run/dbus/system_bus_socket"

// endpoint is one way to reach a manager.
type endpoint struct {
	name string // for people: "system bus"
	addr string // as net.Dial wants it: a path, or @name
	bus  bool   // a bus, which wants Hello and AddMatch; else the manager itself
}

// endpoints lists the ways to reach a manager, in the order to try them: the
// bus first, since the manager's own socket is a private interface of systemd.
// problem says what is wrong with the environment where nothing can be listed.
func endpoints(user bool, uid int, getenv func(string) string) (list []endpoint, problem string) {
	add := func(name, address string) {
		addrs, err := parseAddress(address)
		if err != nil {
			problem = err.Error()
		}
		for _, a := range addrs {
			list = append(list, endpoint{name: name, addr: a, bus: true})
		}
	}
	if !user {
		address := getenv("DBUS_SYSTEM_BUS_ADDRESS")
		if address == "" {
			address = defaultSystemBus
		}
		add("system bus", address)
		if uid == 0 {
			list = append(list, endpoint{name: privateSocket, addr: privateSocket})
		}
		return list, problem
	}
	dir := getenv("XDG_RUNTIME_DIR")
	if address := getenv("DBUS_SESSION_BUS_ADDRESS"); address != "" {
		add("session bus", address)
	} else if dir != "" {
		list = append(list, endpoint{name: "user bus", addr: dir + "/bus", bus: true})
	}
	if dir != "" {
		p := dir + "/systemd/private"
		list = append(list, endpoint{name: p, addr: p})
	} else if problem == "" {
		problem = "neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set"
	}
	return list, problem
}

// parseAddress takes the unix sockets out of a D-Bus server address:
// "unix:path=/run/dbus/system_bus_socket,guid=…;unix:abstract=…".
func parseAddress(address string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(address, ";") {
		keys, ok := strings.CutPrefix(part, "unix:")
		if !ok {
			continue
		}
		for kv := range strings.SplitSeq(keys, ",") {
			k, v, _ := strings.Cut(kv, "=")
			v, err := dbus.UnescapeBusAddressValue(v)
			if err != nil || v == "" {
				continue
			}
			switch k {
			case "path":
				out = append(out, v)
			case "abstract":
				out = append(out, "@"+v)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("bus address %q has no unix socket", address)
	}
	return out, nil
}
