package ledger

import (
	"fmt"
	"math"
	"strings"

	"llmproxy/store"
)

// A Bill sets what an upstream charged a call for its input beside what we had
// counted.
type Bill struct {
	Model    string
	Endpoint Endpoint
	Basis    uint8 // of the count
	Flags    int
	Input    int64 // tokens counted before the call, as budgets were charged
	Counted  int64 // Input before any correction by a learned factor
	Billed   int64 // tokens the upstream reported
}

// shapes are the flags that say what a request holds beside plain text.
func shapes() []struct {
	flag int
	name string
} {
	return []struct {
		flag int
		name string
	}{
		{WithTools, "tools"}, {WithToolCalls, "tool-calls"}, {WithImages, "images"},
		{WithAudio, "audio"}, {WithStructured, "structured"}, {Uncounted, "uncounted"},
	}
}

// Shape names what the request holds beside plain text, such as
// "tools+images", or is "text".
func (b *Bill) Shape() string {
	var names []string
	for _, s := range shapes() {
		if b.Flags&s.flag != 0 {
			names = append(names, s.name)
		}
	}
	if names == nil {
		return "text"
	}
	return strings.Join(names, "+")
}

// BasisName says how well the count was known, as v_calls does.
func (b *Bill) BasisName() string {
	names := [...]string{"exact", "rule", "estimate", "fallback-encoding"}
	if int(b.Basis) < len(names) {
		return names[b.Basis]
	}
	return fmt.Sprintf("basis %d", b.Basis)
}

// Teaches tells whether a factor can be learned from the bill: all of the
// input was counted as text.
func (b *Bill) Teaches() bool { return b.Flags&(WithImages|WithAudio|Uncounted) == 0 }

// Bill returns the bill of a finished call; ok is false where the upstream has
// given no usable figure.
func (c *Call) Bill() (b Bill, ok bool) {
	answered := c.Outcome == Miss || c.Outcome == Bypass
	if !answered || c.Usage == nil || c.Endpoint == Other || c.Flags&(UsageEstimated|UsageOdd) != 0 || c.Input <= 0 || c.Usage.Input <= 0 {
		return b, false
	}
	return Bill{c.Model, c.Endpoint, c.Basis, c.Flags, c.Input, c.Input - c.Correction, c.Usage.Input}, true
}

// bills has the conditions of Call.Bill.
var bills = fmt.Sprintf(`SELECT coalesce(model.name, ''), c.endpoint, c.basis, c.flags, c.input, c.input - c.correction, c.up_input
	FROM call c LEFT JOIN model ON model.id = c.model_id
	WHERE c.id >= $1 AND c.id < $2 AND ($3 = 0 OR c.step_id = $3) AND ($4 = 0 OR c.tenant_id = $4)
	AND c.outcome IN (%d, %d) AND c.endpoint <> %d AND c.flags & %d = 0 AND c.input > 0 AND c.up_input > 0
	ORDER BY c.id`, Miss, Bypass, Other, UsageEstimated|UsageOdd)

// Bills calls each with the bills of the calls with ids from one to before
// another, oldest first, of a step and of a tenant; 0 stands for all.
func Bills(tx *store.Tx, from, to, step, tenant int64, each func(Bill)) error {
	return tx.Each(bills, []any{from, to, step, tenant}, func(scan func(...any) error) error {
		var b Bill
		err := scan(&b.Model, &b.Endpoint, &b.Basis, &b.Flags, &b.Input, &b.Counted, &b.Billed)
		if err == nil {
			each(b)
		}
		return err
	})
}

// lookBack bounds the calls, of whatever outcome, that LatestBills reads.
const lookBack = 100_000

// LatestBills calls each with the bills among the latest calls, oldest first.
func LatestBills(tx *store.Tx, each func(Bill)) error {
	var from int64
	if _, err := tx.Get(`SELECT id FROM call ORDER BY id DESC LIMIT 1 OFFSET $1`, []any{int64(lookBack)}, &from); err != nil {
		return err
	}
	return Bills(tx, from, math.MaxInt64, 0, 0, each)
}
