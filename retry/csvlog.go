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

// csvColumns are the columns of every line. Other programs read them, so they must not change.
var csvColumns = []string{"attempt", "delay_ms", "status", "code", "notes"}

// CSVLog writes attempts as CSV, one line each, after a header line:
//
//	attempt,delay_ms,status,code,notes
//	1,0,timeout,,initial timeout
//	2,137,5xx,502,proxy error
//	3,281,200,201,success
//
// status is the kind of result: 200 for any success, 3xx, 4xx or 5xx, timeout, or error for any other failure to get an
// answer. code is the answer's HTTP status. Keys and addresses are not written. Many goroutines may use one CSVLog.
// Lines of concurrent requests are then interleaved; if that matters, give each request a CSVLog of its own.
type CSVLog struct {
	mu  sync.Mutex
	w   *csv.Writer
	err error
}

// NewCSVLog writes the header line to w and returns the CSVLog that writes the lines of attempts:
//
//	log := retry.NewCSVLog(file)
//	client := retry.Client(retry.Transport{Observer: retry.Observer{OnAttempt: log.Attempt}})
//
// Each line is a single Write to w. Err returns the first error.
func NewCSVLog(w io.Writer) *CSVLog {
	l := &CSVLog{w: csv.NewWriter(w)}
	l.write(csvColumns)
	return l
}

// Attempt writes a line. Use it as Observer.OnAttempt.
func (l *CSVLog) Attempt(a Attempt) { l.write(csvLine(a)) }

// Err returns the first write error, or nil. After an error, nothing more is written.
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

// csvStatus is the kind of an answer. "200" stands for every success, also for a 201.
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
