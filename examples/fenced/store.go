package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite" // the driver
)

// store is a database with one account.
type store struct {
	db      *sql.DB
	account string // new for each run: tokens of an earlier one do not matter
}

// errStale: somebody has written with a higher token. What was read before is out of
// date, and nothing was written.
var errStale = errors.New("refused: the row has a higher token")

func openStore(ctx context.Context) (*store, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection would have a database of its own
	s := &store{db: db, account: rand.Text()}
	_, err = db.ExecContext(ctx, `CREATE TABLE account (
		id TEXT PRIMARY KEY, balance INTEGER NOT NULL, last_token INTEGER NOT NULL)`)
	if err == nil {
		_, err = db.ExecContext(ctx, `INSERT INTO account VALUES (?, 0, 0)`, s.account)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// deposit adds amount, on behalf of the hold that has token. The database compares: it
// alone knows which writes came before. A hold that writes more than once would
// compare with <= instead.
func (s *store) deposit(ctx context.Context, token uint64, amount int) error {
	r, err := s.db.ExecContext(ctx,
		`UPDATE account SET balance = balance + ?, last_token = ? WHERE id = ? AND last_token < ?`,
		amount, int64(token), s.account, int64(token))
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err == nil && n == 0 {
		err = errStale
	}
	return err
}

func (s *store) balance(ctx context.Context) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = ?`, s.account).Scan(&n)
	return n, err
}

func (s *store) close() { _ = s.db.Close() }
