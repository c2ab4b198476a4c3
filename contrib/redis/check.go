package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Check reads the configuration of every Redis master. Its error joins every setting by which Redis may forget keys:
// eviction, and no append-only file. Call it at start-up or in a deployment. A Store also works if Check fails, with
// the promise in the package's comment.
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
	text, err := client.Info(ctx).Result() // hosted Redis often forbids CONFIG
	if err != nil {
		return fmt.Errorf("read configuration of %s: %w", name, err)
	}
	var problems []error
	for _, problem := range forgets(fieldsOf(text)) {
		problems = append(problems, fmt.Errorf("%s %s", name, problem))
	}
	return errors.Join(problems...)
}

// fieldsOf parses the answer to INFO.
func fieldsOf(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// forgets lists the settings by which a Redis may forget keys. A setting that Redis does not report counts as fine.
func forgets(fields map[string]string) (problems []string) {
	if policy, known := fields["maxmemory_policy"]; known && policy != "noeviction" {
		problems = append(problems, "evicts keys when its memory is full, by maxmemory-policy "+policy+": set noeviction")
	}
	if fields["aof_enabled"] == "0" {
		problems = append(problems, "forgets keys when it restarts, because it has no append-only file: set appendonly yes")
	}
	if role, known := fields["role"]; known && role != "master" {
		problems = append(problems, "is a "+role+": connect to its master")
	}
	return problems
}
