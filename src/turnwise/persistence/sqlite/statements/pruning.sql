-- Both read the index of parts alone, in its order. A part without a time (a row of the first schema) counts as very
-- old.

-- name: next_chat
-- The next chat that still has parts, and when the first of them was shown, in microseconds.
SELECT chat_id, CASE WHEN typeof(at) = 'integer' THEN at ELSE 0 END FROM events
WHERE kind = 'part' AND chat_id > ? ORDER BY chat_id, step, attempt LIMIT 1;

-- name: over
-- The parts of a chat that were shown before an attempt, and when.
SELECT rowid, CASE WHEN typeof(at) = 'integer' THEN at ELSE 0 END FROM events
WHERE kind = 'part' AND chat_id = ? AND (step, attempt) < (?, ?) ORDER BY step, attempt, rowid LIMIT ?;
