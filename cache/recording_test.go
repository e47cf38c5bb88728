package cache

import "testing"

func TestReadersSeeTheLastEventsWithTheEnd(t *testing.T) {
	rec := &Recording{}
	rec.Start(Head{Status: 200, Form: SSE})
	rec.Append([]byte("one"))
	waiting := rec.At(1).Change
	rec.Complete(Origin{Call: 7}, []byte("two"), []byte("three"))
	if g := rec.At(1); g.Event != nil || g.Ended || len(rec.Events()) != 1 {
		t.Errorf("before the end a reader finds %+v and %d events", g, len(rec.Events()))
	}
	if rec.Size() != 11 || rec.Origin().Call != 7 {
		t.Errorf("size %d, origin %+v; both are to be known by now", rec.Size(), rec.Origin())
	}
	select {
	case <-waiting:
		t.Error("readers are woken before there is anything to read")
	default:
	}
	rec.End(nil)
	<-waiting
	if g := rec.At(2); string(g.Event) != "three" {
		t.Errorf("after the end the last event is %q", g.Event)
	}
	if g := rec.At(3); !g.Ended || g.Err != nil {
		t.Errorf("after the last event a reader finds %+v", g)
	}
}
