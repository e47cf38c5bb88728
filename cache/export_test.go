package cache

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

// walk reads the records of a selection one after the other.
func walk(t *testing.T, s *store.Store, sel Selection) (records []*Record) {
	t.Helper()
	var after *Key
	for {
		var r *Record
		err := s.View(t.Context(), func(tx *store.Tx) (err error) {
			r, err = Next(tx, sel, after)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			return records
		}
		records = append(records, r)
		after = &r.Key
	}
}

func restore(t *testing.T, s *store.Store, overwrite bool, records ...*Record) (restored []bool) {
	t.Helper()
	err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
		restored, err = Restore(tx, records, overwrite)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return restored
}

func TestNextWalksInTheOrderOfKeys(t *testing.T) {
	s := storetest.New(t)
	keys := shelf(t, s)
	for _, test := range []struct {
		sel  Selection
		want []Key
	}{
		{Selection{}, []Key{keys[2], keys[0], keys[1], keys[3]}},
		{Selection{Step: "draft"}, []Key{keys[0], keys[1]}},
		{Selection{Prefix: "abc"}, []Key{keys[0], keys[1]}},
		{Selection{Prefix: "abce"}, []Key{keys[1]}},
		{Selection{Step: "mail", Prefix: "f"}, []Key{keys[3]}},
		{Selection{Step: "nobody"}, nil},
	} {
		var got []Key
		for _, r := range walk(t, s, test.sel) {
			got = append(got, r.Key)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: got %v, want %v", test.sel, got, test.want)
		}
	}
}

func TestTheGreatestKeyIsTheLast(t *testing.T) {
	s := storetest.New(t)
	greatest := Key{}
	for i := range greatest {
		greatest[i] = 0xff
	}
	restore(t, s, false, recordOf(greatest, 1), recordOf(Key{0xff}, 1))
	if got := walk(t, s, Selection{}); len(got) != 2 || got[1].Key != greatest {
		t.Errorf("got %v", got)
	}
}

func recordOf(key Key, call int64) *Record {
	e := entryOf(key, call, time.Hour, fmt.Appendf(nil, "data: %d\n\n", call))
	return &Record{Key: key, Tenant: "tests", Step: "draft", Model: "sim", Origin: e.Origin, Head: e.Head, Body: e.Body}
}

// What was read from one database and restored in another is the same, and is
// found there.
func TestRestoreBringsBackAll(t *testing.T) {
	from, to := storetest.New(t), storetest.New(t)
	shelf(t, from)
	records := walk(t, from, Selection{})
	if got := restore(t, to, false, records...); !slices.Equal(got, []bool{true, true, true, true}) {
		t.Errorf("restored %v", got)
	}
	again := walk(t, to, Selection{})
	if !reflect.DeepEqual(again, records) {
		t.Errorf("got %+v, want %+v", again, records)
	}
	err := to.View(t.Context(), func(tx *store.Tx) error {
		for i, r := range records {
			find := Find
			if i == 3 { // it is over
				if rec, err := Find(tx, r.Key); rec != nil || err != nil {
					t.Errorf("found %v, %v", rec, err)
				}
				find = FindStale
			}
			rec, err := find(tx, r.Key)
			if err != nil || rec == nil {
				t.Fatalf("%s: %v, %v", r.Key, rec, err)
			}
			if want, _ := r.Body.Events(); !reflect.DeepEqual(rec.Events(), want) {
				t.Errorf("%s: %q, want %q", r.Key, rec.Events(), want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := number(t, to, `SELECT count(*) FROM served`); n != 4 {
		t.Errorf("%d of 4 can be evicted", n)
	}
}

func number(t *testing.T, s *store.Store, query string) (n int64) {
	t.Helper()
	err := s.View(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get(query, nil, &n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWhatRestoreReplaces(t *testing.T) {
	key := Key{7}
	for name, test := range map[string]struct {
		standing, call int64
		ttl            time.Duration
		overwrite      bool
		want           bool
	}{
		"older":             {1, 2, time.Hour, false, true},
		"the same":          {2, 2, time.Hour, false, true},
		"newer":             {3, 2, time.Hour, false, false},
		"newer, overwrite":  {3, 2, time.Hour, true, true},
		"newer, but over":   {3, 2, -time.Second, false, true},
		"nothing":           {0, 2, time.Hour, false, true},
		"nothing, overwrit": {0, 2, time.Hour, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			c := New(1 << 20)
			if test.standing != 0 {
				r := recordOf(key, test.standing)
				r.Origin.ExpiresAt = time.Now().Add(test.ttl).UnixMilli()
				restore(t, s, false, r)
			}
			heed(t, c, s)
			heed(t, c, s)
			c.Remember(Key{8}, &Recording{})
			if got := restore(t, s, test.overwrite, recordOf(key, 2)); got[0] != test.want {
				t.Errorf("restored %v, want %v", got[0], test.want)
			}
			want := test.standing
			if test.want {
				want = 2
			}
			if got := walk(t, s, Selection{}); len(got) != 1 || got[0].Origin.Call != want {
				t.Errorf("stored: %v, want the answer of %d", got, want)
			}
			if n := number(t, s, `SELECT count(*) FROM served s JOIN entry e ON e.id = s.entry_id`); n != 1 || number(t, s, `SELECT count(*) FROM served`) != 1 {
				t.Errorf("%d of 1 can be evicted", n)
			}
			heed(t, c, s)
			if kept := c.memory.EstimatedSize() == 1; kept == test.want {
				t.Errorf("memory is kept: %v, although the answer was replaced: %v", kept, test.want)
			}
		})
	}
}

func heed(t *testing.T, c *Cache, s *store.Store) {
	t.Helper()
	if err := c.HeedPurges(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// A damaged answer does not end the walk.
func TestNextTellsTheKeyOfWhatIsDamaged(t *testing.T) {
	s := storetest.New(t)
	keys := shelf(t, s)
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE entry SET header = '{', body = x'00' WHERE key = $1`, keys[2][:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var r *Record
	err = s.View(t.Context(), func(tx *store.Tx) (err error) {
		r, err = Next(tx, Selection{}, nil)
		return err
	})
	if !errors.Is(err, ErrDamaged) || r == nil || r.Key != keys[2] {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestRecentAndModels(t *testing.T) {
	s := storetest.New(t)
	for i, r := range []*Record{recordOf(Key{1}, 11), recordOf(Key{2}, 12), recordOf(Key{3}, 13), recordOf(Key{4}, 14), recordOf(Key{5}, 15)} {
		switch i {
		case 1:
			r.Step = "mail"
		case 2:
			r.Tenant, r.Model = "others", "theirs"
		case 3:
			r.Model = "large"
		}
		restore(t, s, false, r)
	}
	err := s.View(t.Context(), func(tx *store.Tx) error {
		for limit, want := range map[int][]Answered{9: {{Key{5}, 15}, {Key{4}, 14}, {Key{1}, 11}}, 2: {{Key{5}, 15}, {Key{4}, 14}}} {
			if got, err := Recent(tx, "tests", "draft", limit); err != nil || !slices.Equal(got, want) {
				t.Errorf("got %v, %v; want %v", got, err, want)
			}
		}
		if got, err := Recent(tx, "tests", "nobody", 9); err != nil || got != nil {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := Models(tx, "tests"); err != nil || !slices.Equal(got, []string{"large", "sim"}) {
			t.Errorf("got %v, %v", got, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
