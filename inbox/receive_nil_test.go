package inbox

import (
	"strings"
	"testing"
)

// A transaction that is missing is a mistake of the caller, which an error says.
func TestReceiveNil_ATransactionThatIsNilIsRefused(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	_, received := in.ReceiveTx(t.Context(), nil, event("1", "k"))
	_, stored := in.StoreTx(t.Context(), nil, event("1", "k"))
	_, raised := in.Watermark(t.Context(), nil, "e", 1)
	_, tied := in.WatermarkTies(t.Context(), nil, "e", 1)
	for what, err := range map[string]error{"ReceiveTx": received, "StoreTx": stored, "Watermark": raised, "WatermarkTies": tied} {
		if err == nil || !strings.Contains(err.Error(), "tx is nil") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
