-- name: chat_ids
SELECT number, id FROM chats WHERE number > :after ORDER BY number LIMIT :limit;

-- name: ids_of_prefix in sqlite
SELECT id FROM chats WHERE id >= :prefix AND id < :prefix || char(1114111) AND (:owner IS NULL OR owner = :owner)
ORDER BY since DESC, number DESC LIMIT :limit;

-- name: ids_of_prefix in postgres
SELECT id FROM chats WHERE starts_with(id, :prefix) AND (:owner::text IS NULL OR owner = :owner)
ORDER BY since DESC, number DESC LIMIT :limit;

-- name: awaiting_subagents
-- Chats that wait for subagents, oldest first, from the one after another on.
SELECT id FROM chats WHERE awaits IN ('subagents', 'both') AND NOT archived
    AND number > {number_of_after} ORDER BY number LIMIT :limit;

-- name: naming
-- The profiles that hold a text.
SELECT id, body FROM profiles JOIN chats ON number = chat WHERE strpos(body, :text) > 0;

-- name: holders
SELECT DISTINCT worker FROM chats WHERE worker IS NOT NULL;

-- name: expired_leases in sqlite
-- SQLite sorts text after every number: a lease whose expiry is not a number counts as run out.
SELECT id, token, expires FROM chats WHERE expires <= :now
UNION ALL SELECT id, token, expires FROM chats WHERE expires >= '' ORDER BY expires LIMIT :limit;

-- name: expired_leases in postgres
SELECT id, token FROM chats WHERE worker IS NOT NULL AND expires <= :now ORDER BY expires LIMIT :limit;

-- name: deadlines
-- Chats with an open call whose deadline has passed, each by its first such call: to group them would read all that
-- have.
SELECT id FROM calls JOIN chats ON chats.number = calls.chat
WHERE calls.deadline <= :now AND calls.status = ANY (:open_statuses)
AND chats.state = 'requires_action' AND NOT archived
AND NOT EXISTS (
    SELECT 1 FROM calls AS earlier WHERE earlier.chat = calls.chat AND earlier.status = ANY (:open_statuses)
    AND (earlier.deadline, earlier.call_id) < (calls.deadline, calls.call_id)
)
ORDER BY calls.deadline LIMIT :limit;

-- name: to_wake
SELECT id FROM chats WHERE wake_at <= :now ORDER BY wake_at LIMIT :limit;

-- name: strays
-- Chats in a state that is none of `states`. It steps from state to state along the index of states, and reads one chat
-- of each state that is known.
WITH RECURSIVE stored (state) AS (
    SELECT min(state || '') FROM chats
    UNION ALL
    SELECT (SELECT min(chats.state || '') FROM chats WHERE (chats.state || '') > stored.state)
    FROM stored WHERE stored.state IS NOT NULL
)
SELECT id FROM chats
WHERE (state || '') IN (SELECT state FROM stored WHERE NOT state = ANY (:states))
ORDER BY number LIMIT :limit;

-- name: rested
SELECT id FROM chats WHERE archived = :archived AND rested <= :until ORDER BY rested LIMIT :limit;

-- name: waiting
-- Since when the longest waiting chat of each agent waits. It steps from agent to agent along the index of claimable
-- chats, and reads one chat of each: to group them would read all that wait.
WITH RECURSIVE agents (name) AS (
    SELECT min(agent) FROM chats WHERE NOT archived AND state = 'pending' AND worker IS NULL
    UNION ALL
    SELECT (
        SELECT min(agent) FROM chats WHERE NOT archived AND state = 'pending' AND worker IS NULL AND agent > name
    )
    FROM agents WHERE name IS NOT NULL
)
SELECT name, (
    SELECT min(since) FROM chats WHERE NOT archived AND state = 'pending' AND worker IS NULL AND agent = name
)
FROM agents WHERE name IS NOT NULL;

-- name: chats_by_state
-- How many chats are in each state, and how many of them are archived: the index of states alone answers.
SELECT state || '', count(*), sum(CASE WHEN archived THEN 1 ELSE 0 END) FROM chats GROUP BY state || '';

-- name: chats_by_state_of
SELECT state, count(*), sum(CASE WHEN archived THEN 1 ELSE 0 END) FROM chats WHERE owner = :owner GROUP BY state;

-- name: oldest_actions
-- Since when the chat waits longest whose next action is each one's.
SELECT whose, (SELECT min(since) FROM chats WHERE action_of = whose AND NOT archived)
FROM (SELECT 'operator' AS whose UNION ALL SELECT 'owner' UNION ALL SELECT 'client' UNION ALL SELECT 'subagents') AS parties;

-- name: oldest_work
-- Since when the chat is in each state that has been in it longest, of those that workers hold.
SELECT state, min(since) FROM chats WHERE worker IS NOT NULL GROUP BY state;

-- name: held_chats
SELECT id, worker, state, agent, owner, since FROM chats WHERE worker IS NOT NULL ORDER BY since LIMIT :limit;

-- name: report_worker
INSERT INTO worker_reports (worker, body, seen) VALUES (:worker, :body, :now)
ON CONFLICT (worker) DO UPDATE SET body = excluded.body, seen = excluded.seen;

-- name: forget_workers
DELETE FROM worker_reports WHERE worker = :worker OR seen < :until;

-- name: usage_page
-- Model calls of all chats, or of an owner's, in the order of chats and versions, from one on.
SELECT chats.number, usage.version, usage.number, chats.owner, usage.body FROM usage JOIN chats ON chats.number = usage.chat
WHERE (usage.chat, usage.version, usage.number) > (:chat, :version, :number)
    AND (CAST(:owner AS text) IS NULL OR chats.owner = :owner)
ORDER BY usage.chat, usage.version, usage.number LIMIT :limit;

-- name: worker_reports
SELECT worker, body, seen FROM worker_reports ORDER BY worker;

-- name: at_work
-- How many chats of each key, agent and model each worker holds: the index of leases answers, in its order. One that
-- settles an interrupt asks no model.
SELECT fair_key, agent, capped_model, count(*) FROM chats
WHERE worker IS NOT NULL AND number NOT IN (
    SELECT number FROM chats WHERE NOT archived AND state = 'interrupted' AND NOT settled)
GROUP BY worker, fair_key, agent, capped_model;

-- part: walk
-- Steps from key to key along the index of fair claims, until `depth` keys are found that may have a chat more at work.
WITH RECURSIVE walk (fair_key, found) AS (
    SELECT * FROM (
        SELECT fair_key, CASE WHEN fair_key = ANY (:full) THEN 0 ELSE 1 END AS found FROM chats
        WHERE {waits_in_lane} AND fair_key >= :start ORDER BY fair_key, since, number LIMIT 1) AS first
    UNION ALL
    SELECT next.fair_key, walk.found + CASE WHEN next.fair_key = ANY (:full) THEN 0 ELSE 1 END
    FROM walk JOIN chats AS next ON next.number = (
        SELECT number FROM chats AS later
        WHERE {waits_in_lane} AND fair_key > walk.fair_key ORDER BY fair_key, since, number LIMIT 1)
    WHERE walk.found < :depth
);

-- part: waits_in_lane
{waits} AND agent = :agent AND capped_model = :model AND {has_tools};

-- part: has_tools in sqlite
(needs = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(iif(json_valid(needs), needs, '[]'))
    WHERE value NOT IN (SELECT value FROM json_each(:tools))));

-- part: has_tools in postgres
needs <@ :tools;

-- part: waits
NOT archived AND state = 'pending' AND worker IS NULL;

-- name: lanes
-- The agents and models of chats that wait, found in steps along the index of fair claims.
WITH RECURSIVE lane (agent, model) AS (
    SELECT * FROM (SELECT agent, capped_model FROM chats WHERE {waits} ORDER BY agent, capped_model LIMIT 1) AS first
    UNION ALL
    SELECT next.agent, next.capped_model FROM lane JOIN chats AS next ON next.number = coalesce(
        (SELECT number FROM chats AS later
         WHERE {waits} AND agent = lane.agent AND capped_model > lane.model ORDER BY capped_model LIMIT 1),
        (SELECT number FROM chats AS later
         WHERE {waits} AND agent > lane.agent ORDER BY agent, capped_model LIMIT 1))
)
SELECT agent, model FROM lane;

-- name: waiting_in_lane in sqlite
-- Of each key that the walk finds, the chats that wait longest.
{walk}
SELECT walk.fair_key, since, number, id, version FROM walk JOIN chats ON number IN (
    SELECT number FROM chats AS own
    WHERE {waits_in_lane} AND own.fair_key = walk.fair_key ORDER BY since, number LIMIT :depth)
WHERE NOT walk.fair_key = ANY (:full);

-- name: waiting_in_lane in postgres
{walk}
SELECT walk.fair_key, since, number, id, version FROM walk CROSS JOIN LATERAL (
    SELECT since, number, id, version FROM chats
    WHERE {waits_in_lane} AND fair_key = walk.fair_key ORDER BY since, number LIMIT :depth) AS own
WHERE NOT walk.fair_key = ANY (:full);

-- name: allowance
-- What a principal may still send, as of when; the row is locked.
INSERT INTO rates (name, allowance, at) VALUES (:name, :burst, :now)
ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING allowance, at;

-- name: spend_allowance
UPDATE rates SET allowance = :allowance, at = :now WHERE name = :name;

-- name: forget_full_rates
DELETE FROM rates WHERE at < :full_since;
