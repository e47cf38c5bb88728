package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

func keyOf(n int) (k Key) {
	k[0], k[1], k[2] = byte(n), byte(n>>8), 1
	return k
}

func entryOf(key Key, fence int64, ttl time.Duration, events ...[]byte) *Entry {
	now := time.Now()
	return &Entry{Key: key, Tenant: 1, Step: 2, Model: 3, Body: Pack(events),
		Head: Head{Status: 200, Form: SSE, Header: http.Header{"Content-Type": {"text/event-stream"}}},
		Origin: Origin{Call: fence, CreatedAt: now.UnixMilli(), ExpiresAt: now.Add(ttl).UnixMilli(),
			Input: 12, Basis: 1, Usage: &Usage{12, 3, 4, 1}}}
}

func put(t *testing.T, s *store.Store, e *Entry) (id int64) {
	t.Helper()
	err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
		if id, err = Put(tx, e); err != nil || id == 0 {
			return err
		}
		return MarkServed(tx, []int64{id})
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func find(t *testing.T, s *store.Store, key Key) (rec *Recording, err error) {
	t.Helper()
	err = s.View(t.Context(), func(tx *store.Tx) (err error) {
		rec, err = Find(tx, key)
		return err
	})
	return rec, err
}

func TestAnEntryComesBackAsItWasRecorded(t *testing.T) {
	s := storetest.New(t)
	noise := make([]byte, 5000) // does not compress
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for i, events := range [][][]byte{
		{[]byte("data: one\n\n"), []byte("data: [DONE]\n\n")},
		{bytes.Repeat([]byte("data: the same again\n\n"), 400)},
		{noise},
		{{}, []byte("x"), {}},
	} {
		e := entryOf(keyOf(i), 7, time.Hour, events...)
		put(t, s, e)
		rec, err := find(t, s, e.Key)
		if err != nil || rec == nil {
			t.Fatalf("entry %d: %v, %v", i, rec, err)
		}
		if got := rec.Events(); fmt.Sprint(got) != fmt.Sprint(events) {
			t.Errorf("entry %d: events %q, want %q", i, got, events)
		}
		o := rec.Origin()
		if o.Call != 7 || o.Input != 12 || *o.Usage != *e.Origin.Usage || o.EntryID == 0 || o.ExpiresAt != e.Origin.ExpiresAt {
			t.Errorf("entry %d: origin %+v", i, o)
		}
		if g := rec.At(len(events)); !g.Ended || g.Err != nil || g.Head.Form != SSE || g.Head.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("entry %d: %+v", i, g)
		}
	}
}

func TestALateAnswerDoesNotReplaceANewerOne(t *testing.T) {
	s := storetest.New(t)
	key := keyOf(1)
	put(t, s, entryOf(key, 20, time.Hour, []byte("newer")))
	if id := put(t, s, entryOf(key, 10, time.Hour, []byte("late"))); id != 0 {
		t.Error("the late answer was stored")
	}
	if id := put(t, s, entryOf(key, 30, time.Hour, []byte("newest"))); id == 0 {
		t.Error("the newest answer was not stored")
	}
	rec, err := find(t, s, key)
	if err != nil || string(rec.Events()[0]) != "newest" {
		t.Errorf("stored: %q, %v", rec.Events(), err)
	}
}

func TestAnExpiredEntryIsNotFound(t *testing.T) {
	s := storetest.New(t)
	put(t, s, entryOf(keyOf(1), 1, -time.Second, []byte("x")))
	if rec, err := find(t, s, keyOf(1)); rec != nil || err != nil {
		t.Errorf("found %v, %v", rec, err)
	}
}

func TestADamagedEntryIsToldApart(t *testing.T) {
	for name, sql := range map[string]string{
		"a flipped byte":   `UPDATE entry SET body = zeroblob(length(body))`,
		"a wrong checksum": `UPDATE entry SET crc = crc + 1`,
		"a huge size":      `UPDATE entry SET raw_size = 1 << 60`,
		"a broken header":  `UPDATE entry SET header = '{'`,
		"an unknown codec": `UPDATE entry SET codec = 0, crc = 0, body = x'ffffffffffffffffff01'`,
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			put(t, s, entryOf(keyOf(1), 1, time.Hour, bytes.Repeat([]byte("text "), 1000)))
			if err := s.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.Exec(sql); return err }); err != nil {
				t.Fatal(err)
			}
			if _, err := find(t, s, keyOf(1)); !errors.Is(err, ErrDamaged) {
				t.Errorf("got %v, want ErrDamaged", err)
			}
			err := s.Update(t.Context(), func(tx *store.Tx) error { return Delete(tx, keyOf(1)) })
			if rec, ferr := find(t, s, keyOf(1)); err != nil || rec != nil || ferr != nil {
				t.Errorf("after Delete: %v, %v, %v", rec, err, ferr)
			}
		})
	}
}

func TestSweepDropsTheExpiredThenTheLeastRecentlyServed(t *testing.T) {
	s := storetest.New(t)
	c := New(1 << 20)
	body := make([]byte, 1000)
	for i := range body {
		body[i] = byte(rand.Uint32()) // incompressible: each entry weighs about 1,000 bytes
	}
	var ids []int64
	for i := range 250 {
		ids = append(ids, put(t, s, entryOf(keyOf(i), 1, time.Hour, body)))
	}
	for i := range 150 {
		put(t, s, entryOf(keyOf(1000+i), 1, -time.Minute, body))
	}
	// The first hundred are served again, so the others go first.
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		tx.Now += 120_000
		return MarkServed(tx, ids[:100])
	})
	if err != nil {
		t.Fatal(err)
	}
	done, err := c.Sweep(t.Context(), s, 120_000)
	if err != nil || done.Expired != 150 || done.Oversize < 130 || done.Oversize > 140 {
		t.Fatalf("swept %+v, %v", done, err)
	}
	var left int64
	err = s.View(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get(`SELECT coalesce(sum(size), 0) FROM served`, nil, &left)
		return err
	})
	if err != nil || left > 120_000 || left == 0 {
		t.Errorf("%d bytes are left, %v", left, err)
	}
	for i := range 100 {
		if rec, err := find(t, s, keyOf(i)); rec == nil || err != nil {
			t.Fatalf("entry %d, served lately, is gone: %v", i, err)
		}
	}
}

func TestALeaseHoldsWhileItsInstanceLives(t *testing.T) {
	s := storetest.New(t)
	key := keyOf(1)
	update := func(fn func(*store.Tx) error) {
		t.Helper()
		if err := s.Update(context.Background(), fn); err != nil {
			t.Fatal(err)
		}
	}
	var a, b int64
	update(func(tx *store.Tx) (err error) {
		if a, _, err = tx.Join("a", 30_000); err != nil {
			return err
		}
		b, _, err = tx.Join("b", 30_000)
		return err
	})
	acquire := func(fence, instance int64) (standing *Lease) {
		update(func(tx *store.Tx) (err error) {
			standing, err = Acquire(tx, key, Lease{Fence: fence, Instance: instance})
			return err
		})
		return standing
	}
	if l := acquire(1, a); l != nil {
		t.Fatalf("the first lease meets %+v", l)
	}
	if l := acquire(2, b); l == nil || l.Fence != 1 || !l.Live {
		t.Fatalf("the second lease meets %+v, want the first, live", l)
	}
	update(func(tx *store.Tx) error { _, err := tx.Renew(a, -1); return err })
	if l := acquire(2, b); l == nil || l.Live {
		t.Fatalf("the lease of a dead instance: %+v", l)
	}
	update(func(tx *store.Tx) error { return ReleaseAll(tx, a) })
	if l := acquire(2, b); l != nil {
		t.Fatalf("after the dead were cleared: %+v", l)
	}
	update(func(tx *store.Tx) error { return Release(tx, key, 1) }) // late, with the old fence
	if l := acquire(3, a); l == nil || l.Fence != 2 {
		t.Errorf("an old fence freed the new lease: %+v", l)
	}
}
