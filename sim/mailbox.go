package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// Mailbox is a small service whose calls have effects, for demonstrations of
// what happens when they are repeated:
//
//	POST /messages            {"for": "order A-1"} sends a message: 201 {"id": "msg_1"}
//	GET  /messages?for=NAME   {"messages": [{"id": "msg_1"}]}
//
// Requests with the same Idempotency-Key make one message, and get its id. With
// "vanish": true the message is sent, and the connection closed without an
// answer. The zero value is ready for use by many goroutines.
type Mailbox struct {
	mu    sync.Mutex
	sent  int                 // guarded by mu, like all below
	byFor map[string][]string // what a message is for → ids
	byKey map[string]string   // Idempotency-Key → id
}

type message struct {
	ID string `json:"id"`
}

// Sent is how many messages were sent for something.
func (m *Mailbox) Sent(subject string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byFor[subject])
}

func (m *Mailbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/messages":
		http.NotFound(w, r)
	case r.Method == http.MethodGet:
		m.list(w, r.URL.Query().Get("for"))
	case r.Method == http.MethodPost:
		m.post(w, r)
	default:
		http.Error(w, "GET or POST", http.StatusMethodNotAllowed)
	}
}

func (m *Mailbox) list(w http.ResponseWriter, subject string) {
	m.mu.Lock()
	found := []message{}
	for _, id := range m.byFor[subject] {
		found = append(found, message{id})
	}
	m.mu.Unlock()
	writeJSON(w, http.StatusOK, marshal(object{"messages": found})) //nolint:errcheck // as above
}

func (m *Mailbox) post(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		For    string `json:"for"`
		Vanish bool   `json:"vanish"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&asked); err != nil || asked.For == "" {
		writeJSON(w, http.StatusBadRequest, marshal(object{"message": `send {"for": "what it is about"}`})) //nolint:errcheck // a client that has left cannot be told
		return
	}
	id := m.send(asked.For, r.Header.Get("Idempotency-Key"))
	if asked.Vanish {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusCreated, marshal(message{id})) //nolint:errcheck // as above
}

// send makes the effect, once for each key.
func (m *Mailbox) send(subject, key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id, ok := m.byKey[key]; ok && key != "" {
		return id
	}
	if m.byFor == nil {
		m.byFor, m.byKey = map[string][]string{}, map[string]string{}
	}
	m.sent++
	id := fmt.Sprintf("msg_%d", m.sent)
	m.byFor[subject] = append(m.byFor[subject], id)
	if key != "" {
		m.byKey[key] = id
	}
	return id
}
