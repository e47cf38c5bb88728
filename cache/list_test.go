package cache

import (
	"fmt"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

// shelf stores answers: of the step draft two that hold, of the step mail one
// that holds and one that has expired. It returns their keys in that order.
func shelf(t *testing.T, s *store.Store) [4]Key {
	t.Helper()
	keys := [4]Key{{0xab, 0xcd}, {0xab, 0xce}, {0x01}, {0xff, 0xff}}
	for i, key := range keys {
		ttl := time.Hour
		if i == 3 {
			ttl = -time.Second
		}
		e := entryOf(key, int64(100+i), ttl, []byte("data: x\n\n"))
		if i == 2 {
			e.Head.Form, e.Origin.Usage, e.Origin.Fingerprint = JSON, nil, &Key{9}
		}
		err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
			for into, name := range map[*int64][2]string{&e.Tenant: {"tenant", "acme"}, &e.Step: {"step", []string{"draft", "mail"}[i/2]}, &e.Model: {"model", "sim"}} {
				if *into, err = tx.Intern(name[0], name[1]); err != nil {
					return err
				}
			}
			id, err := Put(tx, e)
			if err != nil {
				return err
			}
			if err := MarkServed(tx, []int64{id}); err != nil {
				return err
			}
			// The first was served last.
			_, err = tx.Exec(`UPDATE served SET at = $1 WHERE entry_id = $2`, tx.Now-int64(i)*60_000, id)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

func listed(t *testing.T, s *store.Store, sel Selection, limit int) (inv Inventory) {
	t.Helper()
	err := s.View(t.Context(), func(tx *store.Tx) (err error) {
		inv, err = List(tx, sel, limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestListSelects(t *testing.T) {
	s := storetest.New(t)
	keys := shelf(t, s)
	for _, test := range []struct {
		sel   Selection
		limit int
		want  []int // indexes of keys, in order
		count int64
	}{
		{Selection{}, 0, []int{0, 1, 2, 3}, 4},
		{Selection{}, 2, []int{0, 1}, 4},
		{Selection{Step: "mail"}, 0, []int{2, 3}, 2},
		{Selection{Step: "nobody"}, 0, nil, 0},
		{Selection{Expired: true}, 0, []int{3}, 1},
		{Selection{Step: "draft", Expired: true}, 0, nil, 0},
		{Selection{Prefix: "abc"}, 0, []int{0, 1}, 2},
		{Selection{Prefix: "ABCE"}, 0, []int{1}, 1},
		{Selection{Prefix: "f"}, 0, []int{3}, 1},
		{Selection{Prefix: "0"}, 0, []int{2}, 1},
		{Selection{Prefix: "abcd1"}, 0, nil, 0},
		{Selection{Prefix: keys[2].String()}, 0, []int{2}, 1},
	} {
		inv := listed(t, s, test.sel, test.limit)
		var got []Key
		for _, a := range inv.Answers {
			got = append(got, a.Key)
		}
		var want []Key
		for _, i := range test.want {
			want = append(want, keys[i])
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || inv.Count != test.count {
			t.Errorf("%+v: %d answers %v; want %d, %v", test.sel, inv.Count, got, test.count, want)
		}
		if (inv.StoredBytes > 0) != (test.count > 0) {
			t.Errorf("%+v: %d bytes", test.sel, inv.StoredBytes)
		}
	}
	a := listed(t, s, Selection{Prefix: "01"}, 0).Answers[0]
	if a.Tenant != "acme" || a.Step != "mail" || a.Model != "sim" || a.Form != JSON || a.Call != 102 || !a.Explicit || a.Usage != nil || a.Input != 12 {
		t.Errorf("an answer to an explicit key: %+v", a)
	}
	if b := listed(t, s, Selection{Prefix: "abcd"}, 0).Answers[0]; b.Usage == nil || *b.Usage != (Usage{12, 3, 4, 1}) || b.Explicit || b.ExpiresAt-b.CreatedAt != time.Hour.Milliseconds() {
		t.Errorf("an answer with usage: %+v", b)
	}
}
