package store

// An instance is a process that works on the database, alive until the time it
// last announced. What a dead one left behind is free for others to settle.

// Join adds an instance that is alive for ttl ms and returns its id, with those
// of earlier instances of the same name: a process that holds the name's
// address now proves that they are gone.
func (tx *Tx) Join(name string, ttl int64) (id int64, earlier []int64, err error) {
	err = tx.Each(`SELECT id FROM instance WHERE name = $1`, []any{name}, collect(&earlier))
	if err != nil {
		return 0, nil, err
	}
	_, err = tx.Get(`INSERT INTO instance (name, alive_until) VALUES ($1, $2) RETURNING id`, []any{name, tx.Now + ttl}, &id)
	return id, earlier, err
}

// Renew keeps an instance alive for another ttl ms. alive is false where it was
// already taken for dead: its process must Join again.
func (tx *Tx) Renew(id, ttl int64) (alive bool, err error) {
	changed, err := tx.Exec(`UPDATE instance SET alive_until = $1 WHERE id = $2`, tx.Now+ttl, id)
	return changed == 1, err
}

// Keep renews an instance whose time is past and leaves any other as it is. alive
// is false where it was already taken for dead.
func (tx *Tx) Keep(id, ttl int64) (alive bool, err error) {
	var until int64
	alive, err = tx.Get(`SELECT alive_until FROM instance WHERE id = $1`, []any{id}, &until)
	if err != nil || !alive || until > tx.Now {
		return alive, err
	}
	return tx.Renew(id, ttl)
}

// Dead lists the instances whose time is past.
func (tx *Tx) Dead() (ids []int64, err error) {
	err = tx.Each(`SELECT id FROM instance WHERE alive_until <= $1`, []any{tx.Now}, collect(&ids))
	return ids, err
}

// Bury removes an instance once its leavings are settled.
func (tx *Tx) Bury(id int64) error {
	_, err := tx.Exec(`DELETE FROM instance WHERE id = $1`, id)
	return err
}

func collect(ids *[]int64) func(func(...any) error) error {
	return func(scan func(...any) error) error {
		var id int64
		if err := scan(&id); err != nil {
			return err
		}
		*ids = append(*ids, id)
		return nil
	}
}
