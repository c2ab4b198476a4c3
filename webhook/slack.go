package webhook

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

// maxChallenge is the maximum length in bytes of a handshake's text that is sent back.
const maxChallenge = 1 << 10

// Slack verifies Slack's scheme v0 (https://docs.slack.dev/authentication/verifying-requests-from-slack): HMAC-SHA256
// over the timestamp and the body, in the headers X-Slack-Signature and X-Slack-Request-Timestamp. The secret is the
// app's signing secret.
//
// For an event of the Events API, ID is event_id, Type is the inner event's type, and OccurredAt is event_time. The
// handshake url_verification is answered with its challenge, after its signature was verified. A slash command has Type
// "slash_command", an interaction has its own type. Both have no ID and are recognised by their body, which contains a
// trigger_id.
//
// One to 16 secrets, each of 16 bytes or more, the current one first. The error says for each unusable secret which rule it breaks.
func Slack(secrets ...string) (Verifier, error) {
	keys, err := signing.Secrets("Slack", secrets, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	return slack(keys), nil
}

type slack [][]byte

func (keys slack) secrets() int { return len(keys) }

func (keys slack) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	value, err := header(h, signing.SlackHeader)
	if err != nil {
		return Delivery{}, err
	}
	timestamp, err := header(h, signing.SlackTimeHeader)
	if err != nil {
		return Delivery{}, err
	}
	at, err := checkTime(signing.SlackTimeHeader, timestamp, now)
	if err != nil {
		return Delivery{}, err
	}
	text, found := strings.CutPrefix(value, "v0=")
	signature, err := hex.DecodeString(text)
	if !found || err != nil {
		return Delivery{}, refuse(ReasonMalformed, "header %s must be v0= and hexadecimal digits", signing.SlackHeader)
	}
	secret, err := matching(keys, [][]byte{signature}, []byte("v0:"+timestamp+":"), body)
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{Timestamp: at, Scheme: "v0", Secret: secret}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		return slackEvent(d, body)
	}
	return slackForm(d, body)
}

// slackEvent reads a request of the Events API.
func slackEvent(d Delivery, body []byte) (Delivery, error) {
	var said struct {
		Type      string   `json:"type"`
		Challenge string   `json:"challenge"`
		EventID   string   `json:"event_id"`
		EventTime jsonTime `json:"event_time"`
		Event     struct {
			Type string `json:"type"`
		} `json:"event"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return Delivery{}, refuse(ReasonContent, "the body must be a JSON object of the Events API")
	}
	d.ID, d.IDSigned, d.OccurredAt = said.EventID, said.EventID != "", said.EventTime.Time
	switch d.Type = said.Type; {
	case said.Type == "event_callback":
		d.Type = said.Event.Type
	case said.Type == "url_verification" && len(said.Challenge) > maxChallenge:
		return Delivery{}, refuse(ReasonContent, "the challenge is %d bytes long: it must be at most %d", len(said.Challenge), maxChallenge)
	case said.Type == "url_verification":
		d.Answer = []byte(said.Challenge)
	}
	return d, nil
}

// slackForm reads a slash command or an interaction.
func slackForm(d Delivery, body []byte) (Delivery, error) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return Delivery{}, refuse(ReasonContent, "the body must be JSON or a form")
	}
	if form.Get("command") != "" {
		d.Type = "slash_command"
	}
	var said struct {
		Type string `json:"type"`
	}
	if json.Unmarshal([]byte(form.Get("payload")), &said) == nil {
		d.Type = said.Type
	}
	return d, nil
}
