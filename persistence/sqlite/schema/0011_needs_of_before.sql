-- What a worker must have for the open local calls of chats that were at work before `needs` was there. A call or a list
-- that cannot be read is left to whoever repairs it.

UPDATE chats SET needs = (
    SELECT json_group_array(name) FROM (
        SELECT DISTINCT iif(json_valid(body), json_extract(body, '$.name'), NULL) AS name
        FROM calls JOIN json_each(iif(json_valid(chats.calls), chats.calls, '[]')) AS current
            ON calls.chat_id = chats.id AND calls.call_id = current.value
        WHERE status IN ('planned', 'started') AND json_valid(body)
            AND iif(json_valid(body), json_extract(body, '$.executor'), NULL) = 'local'
            AND iif(json_valid(body), json_extract(body, '$.refusal'), NULL) IS NULL
        ORDER BY name))
    WHERE needs = '[]' AND calls <> '[]' AND state NOT IN ('waiting', 'requires_action');
