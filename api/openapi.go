package api

import _ "embed" // the API's description

// GradeHeader is the header that every answer carries: the grade of the turn
// that it is about, else what new turns get on this host.
const GradeHeader = "Pinfold-Grade"

//go:embed openapi.json
var openAPI string

// OpenAPI is the API's description, OpenAPI 3.1, as GET /v1/openapi.json
// answers it.
func OpenAPI() string { return openAPI }

// Codes lists the error codes.
func Codes() []Code {
	return []Code{
		CodeBadRequest, CodeForbidden, CodePeerUnverifiable, CodeNotFound, CodeMethod, CodeTimeout,
		CodeTurnOver, CodeStaleEpoch, CodeConflict, CodeStdinClosed, CodeTooLarge, CodeExecFailed, CodeLaunchRefused,
		CodeGradeUnavailable, CodeLimitUnavailable, CodeAdoptRefused, CodeUnsupported, CodeKeeperLost, CodeUnavailable, CodeInternal,
	}
}
