package systemd

import (
	"fmt"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify sends a state to the service manager that started this process
// (sd_notify(3)). Without NOTIFY_SOCKET it does nothing, which is no error.
func Notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

// NotifyReady says that the service serves.
func NotifyReady() error { return Notify(daemon.SdNotifyReady) }

// NotifyStopping says that the service is on its way out.
func NotifyStopping() error { return Notify(daemon.SdNotifyStopping) }

// NotifyStatus shows one line in `systemctl status`.
func NotifyStatus(line string) error { return Notify("STATUS=" + Description(line)) }
