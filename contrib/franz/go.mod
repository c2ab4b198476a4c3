module github.com/holdfast-go/holdfast/contrib/franz

go 1.25.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/holdfast-go/holdfast v0.0.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/klauspost/compress v1.19.2
	github.com/pierrec/lz4/v4 v4.1.26
	github.com/segmentio/kafka-go v0.4.51
	github.com/twmb/franz-go v1.21.7
	github.com/twmb/franz-go/pkg/kmsg v1.13.1
	golang.org/x/sync v0.22.0
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/text v0.41.0 // indirect
)
