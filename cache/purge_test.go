package cache

import (
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

func TestPurgeDeletesTheSelectionAndNothingElse(t *testing.T) {
	for _, test := range []struct {
		sel  Selection
		left []int // indexes of keys
	}{
		{Selection{}, nil},
		{Selection{Step: "draft"}, []int{2, 3}},
		{Selection{Step: "nobody"}, []int{0, 1, 2, 3}},
		{Selection{Expired: true}, []int{0, 1, 2}},
		{Selection{Prefix: "abcd"}, []int{1, 2, 3}},
	} {
		s := storetest.New(t)
		keys := shelf(t, s)
		deleted, err := Purge(t.Context(), s, test.sel)
		if err != nil {
			t.Fatal(err)
		}
		inv := listed(t, s, Selection{}, 0)
		if deleted != int64(4-len(test.left)) || inv.Count != int64(len(test.left)) {
			t.Errorf("%+v: deleted %d, %d are left; want %d left", test.sel, deleted, inv.Count, len(test.left))
		}
		for i, a := range inv.Answers {
			if a.Key != keys[test.left[i]] {
				t.Errorf("%+v: %v is left", test.sel, a.Key)
			}
		}
		var served int64
		err = s.View(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Get(`SELECT count(*) FROM served`, nil, &served)
			return err
		})
		if err != nil || served != inv.Count {
			t.Errorf("%+v: %d rows of served for %d entries, %v", test.sel, served, inv.Count, err)
		}
	}
}

func TestPurgeTakesMoreThanOneBatch(t *testing.T) {
	s := storetest.New(t)
	const n = 2*evictBatch + 1
	for i := range n {
		put(t, s, entryOf(keyOf(i), int64(i+1), time.Hour, []byte("x")))
	}
	if deleted, err := Purge(t.Context(), s, Selection{}); deleted != n || err != nil {
		t.Errorf("deleted %d of %d, %v", deleted, n, err)
	}
	if left := listed(t, s, Selection{}, 0).Count; left != 0 {
		t.Errorf("%d are left", left)
	}
}

// An answer that replaces another while a purge runs keeps the entry's id.
func TestPurgeSparesWhatIsStoredMeanwhile(t *testing.T) {
	s := storetest.New(t)
	old, young := entryOf(keyOf(1), 1, time.Hour, []byte("old")), entryOf(keyOf(2), 2, time.Hour, []byte("young"))
	young.Origin.CreatedAt += 10_000
	ids := []int64{put(t, s, old), put(t, s, young)}
	var deleted int64
	err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
		deleted, err = purgeBatch(tx, ids, tx.Now)
		return err
	})
	if deleted != 1 || err != nil {
		t.Errorf("deleted %d, %v; want the old one alone", deleted, err)
	}
	if rec, err := find(t, s, keyOf(2)); rec == nil || err != nil {
		t.Errorf("the young answer is gone (%v)", err)
	}
}

func TestServersHeedThePurgesOfOthers(t *testing.T) {
	s := storetest.New(t)
	key, other := keyOf(1), keyOf(2)
	put(t, s, entryOf(key, 1, time.Hour, []byte("x")))
	rec, err := find(t, s, key)
	if err != nil {
		t.Fatal(err)
	}
	c := New(1 << 20)
	heed := func() {
		t.Helper()
		if err := c.HeedPurges(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	held := func(key Key) bool { return c.Recall(key, time.Now()) != nil }

	c.Remember(key, rec)
	heed()
	if !held(key) {
		t.Error("memory was dropped without a purge")
	}
	if _, err := Purge(t.Context(), s, Selection{Prefix: other.String()}); err != nil {
		t.Fatal(err)
	}
	heed()
	if !held(key) {
		t.Error("a purge that deleted nothing dropped the memory")
	}
	if _, err := Purge(t.Context(), s, Selection{}); err != nil {
		t.Fatal(err)
	}
	heed()
	if held(key) {
		t.Error("a purged answer is still served from memory")
	}
	c.Remember(key, rec) // by a call that read it just before the purge
	heed()
	if held(key) {
		t.Error("a purged answer that came late to memory stays there")
	}
	c.Remember(key, rec) // stored anew
	heed()
	if !held(key) {
		t.Error("memory is dropped again and again after one purge")
	}
}
