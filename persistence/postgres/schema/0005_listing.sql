-- Chats of a state, or of an owner in a state, newest first. The state is spelled as a sum so that only lists find these
-- indexes: claims and sweeps, which ask for states, too, have others.

CREATE INDEX chats_of_state ON chats ((state || ''), number);
CREATE INDEX chats_of_owner_and_state ON chats (owner, (state || ''), number) WHERE owner IS NOT NULL;
