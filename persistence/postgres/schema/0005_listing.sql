-- Chats of a state, or of an owner in a state, newest first. State and owner are spelled as sums so that only lists find
-- these indexes: claims and sweeps, which ask for states, too, have others, and the planner would rather sort all chats
-- of an owner, however many these are.

CREATE INDEX chats_of_state ON chats ((state || ''), number);
CREATE INDEX chats_of_owner_in_state ON chats ((owner || ''), (state || ''), number) WHERE owner IS NOT NULL;
