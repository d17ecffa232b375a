package hold

import "pinfold.dev/containment"

// What package containment asks for is all there.
var (
	_ containment.Hold        = (*hold)(nil)
	_ containment.Jobs        = (*hold)(nil)
	_ containment.Targets     = (*hold)(nil)
	_ containment.Host        = (*Host)(nil)
	_ containment.ClientWatch = (*Host)(nil)
)
