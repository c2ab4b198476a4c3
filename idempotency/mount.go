package idempotency

import (
	"net/http"
	"net/url"
	"strings"
)

// This file finds the whole path of a request of which http.StripPrefix, or the like, has taken a part off. Without it two
// mounts of one router would be one operation with one path, and a refund would get a payment's answer.

// takenOff is the prefix that is missing in front of a request's path, as its target shows. "" where none is, where the
// path was changed in another way, and where no server has read the request.
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

// wholePath is a request's path with what was taken off it.
func wholePath(r *http.Request) string { return takenOff(r) + r.URL.EscapedPath() }

// below is a router's pattern with a prefix before its path, unless the router stands in front of what took that off: then
// the pattern has as many segments as the whole path. It may have a method and a host in front.
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
