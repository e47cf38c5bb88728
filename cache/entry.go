package cache

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net/http"
	"slices"

	"github.com/klauspost/compress/zstd"

	"llmproxy/store"
)

// ErrDamaged is wrapped where a stored answer cannot be read back: it is to be
// treated as a miss and deleted.
var ErrDamaged = errors.New("stored answer is damaged")

const (
	codecPlain = 0
	codecZstd  = 1
	// worthPacking is the size in bytes below which compressing saves less than a
	// page, and costs as much time as half the transaction that stores it.
	worthPacking = 4096
	// maxDecoded bounds what a damaged row can make the decoder allocate.
	maxDecoded = 1 << 30
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxDecoded), zstd.WithDecoderLowmem(true))
)

// Entry is what is written of a finished answer.
type Entry struct {
	Key    Key
	Tenant int64 // interned
	Step   int64
	Model  int64
	Origin Origin // EntryID is set by Put
	Head   Head
	Body   Packed
}

// Packed is a recording's events as stored: each one's length as a uvarint and
// its bytes, the whole compressed where that makes it smaller.
type Packed struct {
	codec   int
	rawSize int64
	crc     int64
	bytes   []byte
}

// Size is the stored bytes.
func (p Packed) Size() int64 { return int64(len(p.bytes)) }

// Pack packs events for Put. It is done outside the transaction: it costs
// microseconds that the writer should not spend.
func Pack(events [][]byte) Packed {
	n := 0
	for _, e := range events {
		n += len(e) + binary.MaxVarintLen32
	}
	raw := make([]byte, 0, n)
	for _, e := range events {
		raw = binary.AppendUvarint(raw, uint64(len(e)))
		raw = append(raw, e...)
	}
	p := Packed{codec: codecPlain, rawSize: int64(len(raw)), crc: int64(crc32.Checksum(raw, castagnoli)), bytes: raw}
	if len(raw) >= worthPacking {
		if packed := encoder.EncodeAll(raw, nil); len(packed) < len(raw) {
			p.codec, p.bytes = codecZstd, packed
		}
	}
	return p
}

func (p Packed) unpack() ([][]byte, error) {
	raw := p.bytes
	if p.codec == codecZstd {
		if p.rawSize < 0 || p.rawSize > maxDecoded {
			return nil, fmt.Errorf("%w: size %d", ErrDamaged, p.rawSize)
		}
		var err error
		if raw, err = decoder.DecodeAll(p.bytes, make([]byte, 0, p.rawSize)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	if int64(crc32.Checksum(raw, castagnoli)) != p.crc {
		return nil, fmt.Errorf("%w: checksum differs", ErrDamaged)
	}
	var events [][]byte
	for len(raw) > 0 {
		n, used := binary.Uvarint(raw)
		if used <= 0 || n > uint64(len(raw)-used) {
			return nil, fmt.Errorf("%w: event out of bounds", ErrDamaged)
		}
		raw = raw[used:]
		events = append(events, raw[:n:n])
		raw = raw[n:]
	}
	return events, nil
}

const findEntry = `SELECT id, fence, fingerprint, created_at, expires_at, input, basis,
	up_input, up_cached, up_output, up_reasoning, cost, form, codec, raw_size, crc, header, body
	FROM entry WHERE key = $1 AND expires_at > $2`

// Find reads the stored answer of a key as a finished recording, nil where
// there is none. An error that wraps ErrDamaged asks for Delete.
func Find(tx *store.Tx, key Key) (*Recording, error) { return findAfter(tx, key, tx.Now) }

// FindStale is Find for whom an answer's time is never over.
func FindStale(tx *store.Tx, key Key) (*Recording, error) { return findAfter(tx, key, math.MinInt64) }

// findAfter reads the stored answer of a key that expires after a time (Unix ms).
func findAfter(tx *store.Tx, key Key, after int64) (*Recording, error) {
	var (
		o           Origin
		fingerprint []byte
		usage       [4]*int64
		head        = Head{Status: http.StatusOK}
		p           Packed
		header      string
	)
	found, err := tx.Get(findEntry, []any{key[:], after}, &o.EntryID, &o.Call, &fingerprint, &o.CreatedAt, &o.ExpiresAt,
		&o.Input, &o.Basis, &usage[0], &usage[1], &usage[2], &usage[3], &o.Cost,
		&head.Form, &p.codec, &p.rawSize, &p.crc, &header, &p.bytes)
	if err != nil || !found {
		return nil, err
	}
	if usage[0] != nil && usage[1] != nil && usage[2] != nil && usage[3] != nil {
		o.Usage = &Usage{*usage[0], *usage[1], *usage[2], *usage[3]}
	}
	if len(fingerprint) == len(Key{}) {
		o.Fingerprint = (*Key)(fingerprint)
	}
	if err := json.Unmarshal([]byte(header), &head.Header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrDamaged, err)
	}
	if head.Form != JSON && head.Form != SSE {
		return nil, fmt.Errorf("%w: form %d", ErrDamaged, head.Form)
	}
	events, err := p.unpack()
	if err != nil {
		return nil, err
	}
	rec := &Recording{}
	rec.Start(head)
	for _, e := range events {
		rec.Append(e)
	}
	rec.Finish(o, nil)
	return rec, nil
}

// Present tells whether a key has a stored answer, and since when (Unix ms).
func Present(tx *store.Tx, key Key) (createdAt int64, found bool, err error) {
	found, err = tx.Get(`SELECT created_at FROM entry WHERE key = $1 AND expires_at > $2`, []any{key[:], tx.Now}, &createdAt)
	return createdAt, found, err
}

// Expect sets how many calls the ledger knows for the recording's key.
func (r *Recording) Expect(calls int64) { r.calls.Store(calls) }

const putEntry = `INSERT INTO entry AS e (key, fence, fingerprint, tenant_id, step_id, model_id, created_at, expires_at,
	input, basis, up_input, up_cached, up_output, up_reasoning, cost, form, codec, size, raw_size, crc, header, body)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
	ON CONFLICT (key) DO UPDATE SET fence = excluded.fence, fingerprint = excluded.fingerprint,
	tenant_id = excluded.tenant_id, step_id = excluded.step_id, model_id = excluded.model_id,
	created_at = excluded.created_at, expires_at = excluded.expires_at, input = excluded.input, basis = excluded.basis,
	up_input = excluded.up_input, up_cached = excluded.up_cached, up_output = excluded.up_output,
	up_reasoning = excluded.up_reasoning, cost = excluded.cost, form = excluded.form, codec = excluded.codec,
	size = excluded.size, raw_size = excluded.raw_size, crc = excluded.crc, header = excluded.header, body = excluded.body
	WHERE e.fence <= excluded.fence
	RETURNING id`

// Put stores an answer and returns its id, 0 where a later call's answer is
// stored already and stays. [MarkServed] must follow before long, or the entry
// is not evicted.
func Put(tx *store.Tx, e *Entry) (id int64, err error) {
	header, err := json.Marshal(e.Head.Header)
	if err != nil {
		return 0, err
	}
	o := e.Origin
	var usage [4]any
	if u := o.Usage; u != nil {
		usage = [4]any{u.Input, u.Cached, u.Output, u.Reasoning}
	}
	found, err := tx.Get(putEntry, []any{e.Key[:], o.Call, keyBytes(o.Fingerprint), e.Tenant, e.Step, e.Model, o.CreatedAt, o.ExpiresAt,
		o.Input, o.Basis, usage[0], usage[1], usage[2], usage[3], o.Cost,
		e.Head.Form, e.Body.codec, e.Body.Size(), e.Body.rawSize, e.Body.crc, string(header), e.Body.bytes}, &id)
	if err != nil || !found {
		return 0, err
	}
	return id, nil
}

// Delete drops the stored answer of a key.
func Delete(tx *store.Tx, key Key) error {
	var id int64
	found, err := tx.Get(`DELETE FROM entry WHERE key = $1 RETURNING id`, []any{key[:]}, &id)
	if err != nil || !found {
		return err
	}
	_, err = tx.Exec(`DELETE FROM served WHERE entry_id = $1`, id)
	return err
}

// touchEvery is how precise "least recently served" is.
const touchEvery = 60_000 // ms

// Touch marks an entry as served, at most once a minute. It tells whether the
// caller has to write that down by [MarkServed].
func (r *Recording) Touch(now int64) (entryID int64, write bool) {
	last := r.touched.Load()
	if r.origin.EntryID == 0 || now-last < touchEvery {
		return 0, false
	}
	return r.origin.EntryID, r.touched.CompareAndSwap(last, now)
}

const markServed = `INSERT INTO served (entry_id, at, size, expires_at)
	SELECT id, $1, size, expires_at FROM entry WHERE id = $2
	ON CONFLICT (entry_id) DO UPDATE SET at = excluded.at, size = excluded.size, expires_at = excluded.expires_at`

// MarkServed writes down that entries were stored or served now.
func MarkServed(tx *store.Tx, entryIDs []int64) error {
	slices.Sort(entryIDs)
	for _, id := range slices.Compact(entryIDs) {
		if _, err := tx.Exec(markServed, tx.Now, id); err != nil {
			return err
		}
	}
	return nil
}

// MarkUnserved marks the latest entries that a process which died had stored
// and not marked any more.
func MarkUnserved(tx *store.Tx) error {
	_, err := tx.Exec(`INSERT INTO served (entry_id, at, size, expires_at)
		SELECT id, created_at, size, expires_at FROM entry
		WHERE id > (SELECT coalesce(max(entry_id), 0) FROM served)`)
	return err
}

func keyBytes(k *Key) []byte {
	if k == nil {
		return nil
	}
	return k[:]
}
