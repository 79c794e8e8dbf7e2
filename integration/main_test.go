package integration

import "testing"

// roles are what child processes of these tests can do.
var roles = map[string]Role{}

func TestMain(m *testing.M) { Main(m, roles, 8) }
