module github.com/holdfast-go/holdfast/contrib/franz

go 1.25.0

require (
	github.com/holdfast-go/holdfast v0.0.0
	github.com/twmb/franz-go v1.21.7
	github.com/twmb/franz-go/pkg/kmsg v1.13.1
)
