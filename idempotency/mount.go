package idempotency

import (
	"net/http"
	"net/url"
	"strings"
)

// This file finds the whole path of a request from which http.StripPrefix, or similar code, removed a prefix. Without
// it, two mounts of one router would be one operation with one path. A refund would get the answer to a payment.

// takenOff returns the prefix that is missing from a request's path, judging by its request target. It returns "" if
// none is missing, if the path was changed in another way, or if no server read the request.
func takenOff(r *http.Request) (prefix string) {
	if r.RequestURI == "" {
		return ""
	}
	target, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return ""
	}
	prefix, found := strings.CutSuffix(target.EscapedPath(), r.URL.EscapedPath())
	if !found {
		return ""
	}
	return prefix
}

// wholePath is a request's path including the removed prefix.
func wholePath(r *http.Request) string { return takenOff(r) + r.URL.EscapedPath() }

// below adds a prefix to the path of a router's pattern. It does not if the router ran before the prefix was removed:
// then the pattern has as many segments as the whole path. The pattern may begin with a method and a host.
func below(prefix, pattern, whole string) string {
	if strings.Count(pattern, "/") == strings.Count(whole, "/") {
		return pattern
	}
	before, after, found := strings.Cut(pattern, "/")
	if !found {
		return pattern
	}
	return before + prefix + "/" + after
}
