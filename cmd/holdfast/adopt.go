package main

import (
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/relay"
)

// adoptCmd lets relays run on a restored copy.
type adoptCmd struct {
	Yes bool `help:"Confirm that all relays of this database are stopped."`
}

func (a *adoptCmd) Run(p *program.Program) error {
	if !a.Yes {
		return errors.New("adopt publishes again every event still in the log: stop all relays of this database, then add --yes")
	}
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	did, err := relay.Adopt(p.Ctx, pool, p.Schema())
	if err != nil {
		return err
	}
	fmt.Fprintln(p.Out, did)
	return nil
}
