package redistest

import "errors"

// Stop is not to be had here.
func (p *Process) Stop() error { return errors.ErrUnsupported }

// Cont is not to be had here.
func (p *Process) Cont() error { return errors.ErrUnsupported }
