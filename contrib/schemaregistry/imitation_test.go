package schemaregistry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
)

// imitation answers as the documented API of a schema registry does
// (https://docs.confluent.io/platform/current/schema-registry/develop/api.html), for what this package asks.
type imitation struct {
	*httptest.Server
	mu       sync.Mutex
	schemas  []registered // the id is the place, from 1
	subjects map[string][]int
	asked    []string
	status   int // what it answers to everything; 0: the answer
	user     string
}

type registered struct {
	Schema     string           `json:"schema"`
	Type       string           `json:"schemaType,omitempty"`
	References []map[string]any `json:"references,omitempty"`
}

func imitate(t *testing.T) *imitation {
	im := &imitation{subjects: map[string][]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /schemas/ids/{id}", im.byID)
	mux.HandleFunc("GET /subjects/{subject}/versions/{version}", im.byVersion)
	mux.HandleFunc("POST /subjects/{subject}/versions", im.register)
	mux.HandleFunc("POST /subjects/{subject}", im.lookUp)
	im.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		im.mu.Lock()
		defer im.mu.Unlock()
		im.asked = append(im.asked, r.Method+" "+r.URL.Path)
		im.user, _, _ = r.BasicAuth()
		if im.user == "" {
			im.user = r.Header.Get("Authorization")
		}
		if im.status != 0 {
			refuse(w, im.status, im.status*100+1, "as told")
			return
		}
		w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(im.Close)
	return im
}

func refuse(w http.ResponseWriter, status, code int, message string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error_code": code, "message": message})
}

// add registers a schema under a subject, and returns its id.
func (im *imitation) add(subject string, s registered) int {
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.put(subject, s)
}

func (im *imitation) put(subject string, s registered) int {
	if s.Type == "AVRO" { // which the API leaves out
		s.Type = ""
	}
	id := 0
	for i, known := range im.schemas {
		if known.Schema == s.Schema && known.Type == s.Type {
			id = i + 1
		}
	}
	if id == 0 {
		im.schemas = append(im.schemas, s)
		id = len(im.schemas)
	}
	for _, has := range im.subjects[subject] {
		if has == id {
			return id
		}
	}
	im.subjects[subject] = append(im.subjects[subject], id)
	return id
}

func (im *imitation) byID(w http.ResponseWriter, r *http.Request) {
	id, _ := strconv.Atoi(r.PathValue("id"))
	if id < 1 || id > len(im.schemas) {
		refuse(w, http.StatusNotFound, 40403, "Schema not found")
		return
	}
	_ = json.NewEncoder(w).Encode(im.schemas[id-1])
}

func (im *imitation) byVersion(w http.ResponseWriter, r *http.Request) {
	subject, ids := r.PathValue("subject"), im.subjects[r.PathValue("subject")]
	version, err := strconv.Atoi(r.PathValue("version"))
	if err != nil || version == -1 { // latest
		version = len(ids)
	}
	if version < 1 || version > len(ids) {
		refuse(w, http.StatusNotFound, 40402, "Version not found")
		return
	}
	im.answer(w, subject, version, ids[version-1])
}

func (im *imitation) answer(w http.ResponseWriter, subject string, version, id int) {
	s := im.schemas[id-1]
	_ = json.NewEncoder(w).Encode(map[string]any{"subject": subject, "version": version, "id": id, "schema": s.Schema, "schemaType": s.Type, "references": s.References})
}

func (im *imitation) register(w http.ResponseWriter, r *http.Request) {
	var s registered
	if json.NewDecoder(r.Body).Decode(&s) != nil || s.Schema == "" {
		refuse(w, http.StatusUnprocessableEntity, 42201, "Invalid schema")
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"id": im.put(r.PathValue("subject"), s)})
}

func (im *imitation) lookUp(w http.ResponseWriter, r *http.Request) {
	var s registered
	_ = json.NewDecoder(r.Body).Decode(&s)
	if s.Type == "AVRO" {
		s.Type = ""
	}
	for version, id := range im.subjects[r.PathValue("subject")] {
		if known := im.schemas[id-1]; known.Schema == s.Schema && known.Type == s.Type {
			im.answer(w, r.PathValue("subject"), version+1, id)
			return
		}
	}
	refuse(w, http.StatusNotFound, 40403, "Schema not found")
}

func (im *imitation) answers(status int) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.status = status
}

func (im *imitation) questions() string {
	im.mu.Lock()
	defer im.mu.Unlock()
	return fmt.Sprint(im.asked)
}
