-- name: funds
-- Locks budgets, in an order that all share: no two transactions deadlock.
SELECT key, body FROM budgets WHERE key = ANY (:keys) ORDER BY key FOR UPDATE;

-- name: budgets
SELECT key, body FROM budgets WHERE key = ANY (:keys) ORDER BY key;

-- name: all_budgets in sqlite
SELECT key, body FROM budgets ORDER BY key LIMIT coalesce(:limit, -1);

-- name: all_budgets in postgres
SELECT key, body FROM budgets ORDER BY key LIMIT :limit;

-- name: put_budget
INSERT INTO budgets (key, body) VALUES (:key, :body) ON CONFLICT (key) DO UPDATE SET body = excluded.body;

-- name: begin_budget
-- A row to lock, where there is no budget: else two that make it at the same time would not see each other.
INSERT INTO budgets (key, body) VALUES (:key, '') ON CONFLICT (key) DO NOTHING;

-- name: delete_budget
DELETE FROM budgets WHERE key = :key;
