SELECT chats.id, state, settled, archived, version, facts.body AS facts, profiles.body AS profile, worker, token,
       chats.calls AS call_ids,
       (SELECT array_agg(calls.body ORDER BY step, idx)
        FROM calls WHERE chat_id = chats.id AND call_id = ANY (chats.calls)) AS calls,
       (SELECT array_agg(queue.body ORDER BY rank) FROM queue WHERE chat_id = chats.id) AS queue,
       event_seq, head, clock_timestamp() AS at
FROM chats
LEFT JOIN facts ON facts.chat_id = chats.id
LEFT JOIN profiles ON profiles.chat_id = chats.id
