package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/rig/bouncer"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// memoryLog is how much of its log a server in memory keeps, about.
const memoryLog = "256MB"

// image is the PostgreSQL of BestPostgres where it needs a container.
const image = "postgres:18"

// BestPostgres starts the best there is for tests of logic.
func (s *Servers) BestPostgres(_ servers.PostgresArgs, reply *servers.PostgresReply) error {
	ctx := context.Background()
	opts := pgserver.Options{Settings: pgserver.NoSync(), NoDownload: true, Dir: memoryDir()}
	opts.Settings["max_connections"] = "400"
	if opts.Dir != "" {
		opts.Settings["max_wal_size"] = memoryLog
	}
	server, err := pgserver.Start(ctx, opts)
	if !errors.Is(err, pgserver.ErrNoServer) { // where there are binaries and they do not work, that is to be seen
		return s.postgres(reply, server, err)
	}
	dockerErr := s.ContainerPostgres(servers.PostgresArgs{Image: image}, reply)
	if dockerErr == nil && reply.Missing == "" {
		return nil
	}
	opts.NoDownload = false
	if server, err = pgserver.Start(ctx, opts); err != nil {
		reply.Missing = fmt.Sprintf("%v (%v%s)", err, errors.Join(dockerErr), reply.Missing)
		return nil
	}
	reply.Missing = ""
	return s.postgres(reply, server, nil)
}

// ContainerPostgres starts one in a container.
func (s *Servers) ContainerPostgres(args servers.PostgresArgs, reply *servers.PostgresReply) error {
	reply.Docker = true
	dsn, stop, err := startContainer(args.Image)
	if err != nil {
		reply.Missing = err.Error()
		return nil
	}
	reply.DSN, reply.ID = dsn, s.add(nil, stop)
	return nil
}

// OwnPostgres starts one for a test that makes trouble.
func (s *Servers) OwnPostgres(args servers.PostgresArgs, reply *servers.PostgresReply) error {
	server, err := pgserver.Start(context.Background(), pgserver.Options{Settings: args.Settings})
	return s.postgres(reply, server, err)
}

// StandbyPostgres starts a standby of another one.
func (s *Servers) StandbyPostgres(args servers.PostgresArgs, reply *servers.PostgresReply) error {
	primary, err := get[*pgserver.Server](&s.started, args.Primary)
	if err != nil {
		return err
	}
	server, err := pgserver.InitStandby(context.Background(), primary, pgserver.Options{Settings: args.Settings})
	return s.postgres(reply, server, err)
}

func (s *Servers) postgres(reply *servers.PostgresReply, server *pgserver.Server, err error) error {
	if errors.Is(err, pgserver.ErrNoServer) {
		reply.Missing = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	reply.DSN, reply.BinDir, reply.ID = server.DSN, server.BinDir(), s.add(server, server.Stop)
	return nil
}

// Postgres does something to a server.
func (s *Servers) Postgres(args servers.DoArgs, _ *servers.DoReply) error {
	server, err := get[*pgserver.Server](&s.started, args.ID)
	if err != nil {
		return err
	}
	switch args.Verb {
	case servers.End:
		server.Stop()
		return nil
	case servers.Kill:
		return server.Kill()
	case servers.StopFast:
		return server.StopFast()
	case servers.Restart:
		return server.Restart(context.Background())
	case servers.Promote:
		return server.Promote(context.Background())
	}
	return fmt.Errorf("verb is %q: it must be one for PostgreSQL", args.Verb)
}

// Bouncer starts a PgBouncer.
func (s *Servers) Bouncer(args servers.BouncerArgs, reply *servers.BouncerReply) error {
	server, err := bouncer.Start(context.Background(), bouncer.Options{
		Target:     args.Target,
		User:       args.User,
		Password:   args.Password,
		PoolSize:   args.PoolSize,
		MaxClients: args.MaxClients,
		Settings:   args.Settings,
	})
	if errors.Is(err, bouncer.ErrNoBouncer) {
		reply.Missing = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	s.add(server, server.Stop)
	reply.Address = server.Address()
	return nil
}
