package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/inbox"
)

// story is what the chapters share.
type story struct {
	stories.Story
	config config

	careful, careless *inbox.Inbox
}

func (s *story) start(ctx context.Context) (err error) {
	if err := s.Start(ctx, "watermark", s.config.DatabaseURL, tables); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	if s.careful, err = newShop(s.Pool, s.Schema, "careful", s.config.careless, quiet); err != nil {
		return err
	}
	if s.careless, err = newShop(s.Pool, s.Schema, "careless", true, quiet); err != nil {
		return err
	}
	s.Say("holdfast: a price that does not go back\n\n%s\n", s.AboutPostgres)
	return nil
}

// receive gives an event to both shops.
func (s *story) receive(ctx context.Context, e holdfast.Event, want inbox.Outcome) error {
	for name, in := range map[string]*inbox.Inbox{"careful": s.careful, "careless": s.careless} {
		if out, err := in.Receive(ctx, e); err != nil {
			return err
		} else if out != want {
			return fmt.Errorf("%s of %s is %s for the %s shop, not %s", e.ID, e.Source, out, name, want)
		}
	}
	return nil
}

func (s *story) price(ctx context.Context, shop, sku string) (p price, err error) {
	p.SKU = sku
	err = s.Pool.QueryRow(ctx, "select version, cents from prices where shop = $1 and sku = $2", shop, sku).Scan(&p.Version, &p.Cents)
	return p, err
}

// show says what both shops ask for the teapot now.
func (s *story) show(ctx context.Context) error {
	for _, shop := range []string{"careful", "careless"} {
		p, err := s.price(ctx, shop, "teapot")
		if err != nil {
			return err
		}
		s.Say("    the %-8s shop: %d.%02d, version %d", shop, p.Cents/100, p.Cents%100, p.Version)
	}
	return nil
}

func (s *story) overtaken(ctx context.Context) error {
	s.Say("1. Version 2 of the teapot's price comes, then version 1")
	for _, p := range []price{{"teapot", 2, 24_00}, {"teapot", 1, 19_00}} {
		if err := s.receive(ctx, changed("catalogue", p), inbox.Handled); err != nil {
			return err
		}
	}
	return s.show(ctx)
}

func (s *story) repeated(ctx context.Context) error {
	s.Say("2. Version 2 comes once more, by another way and under another id; and again under its own")
	p := price{"teapot", 2, 24_00}
	if err := s.receive(ctx, changed("import", p), inbox.Handled); err != nil {
		return err
	}
	if err := s.receive(ctx, changed("catalogue", p), inbox.Duplicate); err != nil {
		return err
	}
	return s.show(ctx)
}

func (s *story) replayed(ctx context.Context) error {
	s.Say("3. Version 3 is a typing error and becomes a dead letter; version 4 comes; ann fixes version 3 and replays it")
	wrong := changed("catalogue", price{"teapot", 3, -26_00})
	if err := s.receive(ctx, wrong, inbox.Dead); err != nil {
		return err
	}
	if err := s.receive(ctx, changed("catalogue", price{"teapot", 4, 29_00}), inbox.Handled); err != nil {
		return err
	}
	letters, err := dlq.New(s.Pool, dlq.Config{Schema: s.Schema})
	if err != nil {
		return err
	}
	found, err := letters.List(ctx, dlq.Filter{})
	if err != nil {
		return err
	}
	fixed, err := json.Marshal(price{"teapot", 3, 26_00})
	if err != nil {
		return err
	}
	for _, l := range found {
		if err := letters.Edit(ctx, l.ID, fixed, "ann@shop", "the minus was a typing error"); err != nil {
			return err
		}
	}
	if _, err := letters.Replay(ctx, dlq.Filter{}, dlq.ReplayOptions{By: "ann@shop"}); err != nil {
		return err
	}
	replayed := func(ctx context.Context) (bool, error) {
		left, err := letters.List(ctx, dlq.Filter{State: dlq.StateReplaying})
		return len(left) == 0, err
	}
	if err := stories.RunUntil(ctx, replayed, s.careful.Run, s.careless.Run); err != nil {
		return err
	}
	return s.show(ctx)
}

// versions is how many changes of one price come at once.
const versions = 100

func (s *story) crowd(ctx context.Context) error {
	s.Say("4. %d versions of the teacup's price come, 20 at a time and in no order", versions)
	next := make(chan int64, versions)
	for _, v := range mathrand.Perm(versions) {
		next <- int64(v) + 1
	}
	close(next)
	var wg sync.WaitGroup
	errs := make(chan error, versions)
	for range 20 {
		wg.Go(func() {
			for v := range next {
				errs <- s.receive(ctx, changed("catalogue", price{"teacup", v, 5_00 + v}), inbox.Handled)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	for _, shop := range []string{"careful", "careless"} {
		var taken int
		if err := s.Pool.QueryRow(ctx, "select count(*) from history where shop = $1 and sku = 'teacup'", shop).Scan(&taken); err != nil {
			return err
		}
		p, err := s.price(ctx, shop, "teacup")
		if err != nil {
			return err
		}
		s.Say("    the %-8s shop took %d of them and ends at version %d", shop, taken, p.Version)
	}
	return nil
}
