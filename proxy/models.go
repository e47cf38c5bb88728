package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"llmproxy/cache"
	"llmproxy/store"
)

// sendModels answers a question for the models from what is known here: the list
// of them, or one by its escaped name.
func (c *call) sendModels(name string) error {
	models, err := c.knownModels()
	if err != nil {
		return err
	}
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"` // Unix s; not known
		OwnedBy string `json:"owned_by"`
	}
	list := []model{}
	for _, name := range models {
		list = append(list, model{ID: name, Object: "model", OwnedBy: "llmproxy"})
	}
	var answer any = map[string]any{"object": "list", "data": list}
	if name != "" {
		if name, err = url.PathUnescape(name); err != nil {
			return invalidRequest("The model's name is not percent-encoded properly")
		}
		at := slices.Index(models, name)
		if at < 0 {
			return &Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Param: "model",
				Message: fmt.Sprintf("No stored answer is of the model %.140q, nor does the configuration name it", name)}
		}
		answer = list[at]
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return c.sendWhole(&cache.Head{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}, body)
}

// listsNoModels tells an upstream that has no list of models: many compatible
// ones do not, and clients ask for it to test a credential.
func (c *call) listsNoModels(status int) bool {
	return c.route.path == "models" && c.r.Method == http.MethodGet &&
		(status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented)
}

// knownModels are the models that the configuration names in full and those of
// the tenant's latest answers, in the order of their names.
func (c *call) knownModels() (names []string, err error) {
	err = c.server.Store.View(context.WithoutCancel(c.r.Context()), func(tx *store.Tx) (err error) {
		names, err = cache.Models(tx, c.row.Tenant)
		return err
	})
	if err != nil {
		return nil, unavailable("store_unavailable", "The database cannot be read; look at the server's log, then send the call again", 5)
	}
	for _, u := range c.policy.Upstreams {
		for _, glob := range u.Models {
			if !strings.Contains(glob, "*") {
				names = append(names, glob)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
