package retry

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// csvColumns are what every line has; others read them, so they stay.
var csvColumns = []string{"attempt", "delay_ms", "status", "code", "notes"}

// CSVLog writes attempts as CSV, one line each, under the line "attempt,delay_ms,status,code,notes":
//
//	attempt,delay_ms,status,code,notes
//	1,0,timeout,,initial timeout
//	2,137,5xx,502,proxy error
//	3,281,200,201,success
//
// status says what kind of end it was: 200 for any success, 3xx, 4xx or 5xx, timeout, or error for other failures to get
// an answer. code is the answer's HTTP status. Neither keys nor addresses are written. It may be used from many
// goroutines at once; lines of requests that run at the same time stand among each other, so give each a CSVLog of its
// own where that matters.
type CSVLog struct {
	mu  sync.Mutex
	w   *csv.Writer
	err error
}

// NewCSVLog writes the line of columns to w, and returns what writes the lines of attempts below it:
//
//	log := retry.NewCSVLog(file)
//	client := retry.Client(retry.Transport{Observer: retry.Observer{OnAttempt: log.Attempt}})
//
// Each line is written by a single Write to w. Err returns what failed.
func NewCSVLog(w io.Writer) *CSVLog {
	l := &CSVLog{w: csv.NewWriter(w)}
	l.write(csvColumns)
	return l
}

// Attempt writes a line. It is meant for Observer.OnAttempt.
func (l *CSVLog) Attempt(a Attempt) { l.write(csvLine(a)) }

// Err returns the first error of writing, or nil. After one, nothing more is written.
func (l *CSVLog) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *CSVLog) write(line []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	err := l.w.Write(line)
	if l.w.Flush(); err == nil {
		err = l.w.Error()
	}
	if err != nil {
		l.err = fmt.Errorf("write retry log: %w", err)
	}
}

// csvLine is an attempt as a line of the log.
func csvLine(a Attempt) []string {
	status, code, notes := "error", "", string(Classify(a.Err))
	switch {
	case a.Status != 0:
		status, code, notes = csvStatus(a.Status), strconv.Itoa(a.Status), csvNotes(a.Status, a.Code)
	case Classify(a.Err) == Timeout && a.Number == 1:
		status, notes = "timeout", "initial timeout"
	case Classify(a.Err) == Timeout:
		status, notes = "timeout", "timeout"
	}
	delay := a.Delay.Round(time.Millisecond).Milliseconds()
	return []string{strconv.Itoa(a.Number), strconv.FormatInt(delay, 10), status, code, notes}
}

// csvStatus is the kind of an answer. "200" is the name of every success, of a 201 too.
func csvStatus(status int) string {
	if status >= 200 && status <= 299 {
		return "200"
	}
	return strconv.Itoa(status/100) + "xx"
}

func csvNotes(status int, code string) string {
	switch {
	case code != "":
		return code
	case status >= 200 && status <= 299:
		return "success"
	case status == http.StatusBadGateway:
		return "proxy error"
	case status >= 400 || http.StatusText(status) == "":
		return string(classifyStatus(status))
	}
	return http.StatusText(status)
}
