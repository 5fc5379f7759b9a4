-- What a worker must have for the open local calls of chats that were at work before `needs` was there. A call that cannot
-- be read is left to whoever repairs it.

DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT id, calls FROM chats
        WHERE needs = '{}' AND calls <> '{}' AND state NOT IN ('waiting', 'requires_action')
    LOOP
        BEGIN
            UPDATE chats SET needs = ARRAY(
                SELECT DISTINCT body::json ->> 'name' COLLATE "C" FROM calls
                WHERE chat_id = one.id AND call_id = ANY (one.calls) AND status IN ('planned', 'started')
                    AND body::json ->> 'executor' = 'local' AND body::json ->> 'refusal' IS NULL
                ORDER BY 1)
                WHERE id = one.id;
        EXCEPTION WHEN data_exception THEN
            NULL;
        END;
    END LOOP;
END
$$;
