package main

import (
	"io"
	"log/slog"
)

// logFlags say how a process logs to standard error.
type logFlags struct {
	Format string `help:"text or json." enum:"text,json" default:"text" env:"HOLDFAST_LOG_FORMAT"`
	Level  string `help:"The least that is logged: debug, info, warn or error." enum:"debug,info,warn,error" default:"info" env:"HOLDFAST_LOG_LEVEL"`
}

func (l logFlags) logger(to io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{}
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err == nil { // kong has refused anything else
		options.Level = level
	}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}
