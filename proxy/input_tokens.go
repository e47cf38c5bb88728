package proxy

import (
	"encoding/json"
	"net/http"

	"llmproxy/cache"
	"llmproxy/ledger"
)

// serveInputTokens answers POST /v1/responses/input_tokens from our own count.
// It calls no model, so it has no budget and no row.
func (c *call) serveInputTokens() (err error) {
	if err := c.readDocument(); err != nil {
		return err
	}
	if c.view, err = responseView(c.doc); err != nil {
		return err
	}
	c.row.Endpoint, c.row.Model = ledger.Responses, c.view.Model
	if _, err := c.estimate(); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"object": "response.input_tokens", "input_tokens": c.row.Input})
	if err != nil {
		return err
	}
	return c.sendWhole(&cache.Head{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}, body)
}
