package webhook_test

import (
	"net/http"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/webhook"
)

// Each tenant has an endpoint and secrets of its own: the URL says whose secret it is, before anything of the request is
// believed.
func ExampleNew_tenants() {
	mount := func(mux *http.ServeMux, in *inbox.Inbox, secrets map[string][]string) error { // by endpoint
		for endpoint, current := range secrets {
			v, err := webhook.Standard(current...)
			if err != nil {
				return err
			}
			h, err := webhook.New(in, endpoint, v, webhook.Config{})
			if err != nil {
				return err
			}
			mux.Handle("/hooks/"+endpoint, h)
		}
		mux.HandleFunc("/hooks/", func(w http.ResponseWriter, _ *http.Request) { // endpoints that there are no longer, or never were
			http.Error(w, "this endpoint is no longer here", http.StatusGone)
		})
		return nil
	}
	_ = mount
}
