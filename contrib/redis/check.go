package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Check asks every master of Redis how it is configured, and returns an error that joins all by which it may forget keys:
// eviction, and a restart without an append-only file. It is meant for start-up and deployment: a Store works all the
// same, with the promise of the package's comment.
func (s *Store) Check(ctx context.Context) error {
	cluster, many := s.client.(*redis.ClusterClient)
	if !many {
		return check(ctx, s.client, "redis")
	}
	var mu sync.Mutex
	var problems []error
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		err := check(ctx, node, "redis "+node.Options().Addr)
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, err)
		return nil
	})
	return errors.Join(append(problems, err)...)
}

func check(ctx context.Context, client redis.Cmdable, name string) error {
	text, err := client.Info(ctx).Result() // CONFIG is forbidden where somebody else runs it
	if err != nil {
		return fmt.Errorf("ask %s how it is configured: %w", name, err)
	}
	var problems []error
	for _, problem := range forgets(fieldsOf(text)) {
		problems = append(problems, fmt.Errorf("%s %s", name, problem))
	}
	return errors.Join(problems...)
}

// fieldsOf reads the answer to INFO.
func fieldsOf(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// forgets says by what a Redis may forget keys. What it does not tell of itself is not held against it.
func forgets(fields map[string]string) (problems []string) {
	if policy, known := fields["maxmemory_policy"]; known && policy != "noeviction" {
		problems = append(problems, "evicts keys when its memory is full, by maxmemory-policy "+policy+": set noeviction")
	}
	if fields["aof_enabled"] == "0" {
		problems = append(problems, "forgets keys when it restarts, since it keeps no append-only file: set appendonly yes")
	}
	if role, known := fields["role"]; known && role != "master" {
		problems = append(problems, "is a "+role+": connect to its master")
	}
	return problems
}
