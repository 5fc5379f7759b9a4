"""The writes that rows name: each changes a draft, and so the facts, the store and what subscribers see."""

from turnwise.states.writes.calls import (
    ask_client,
    cancel_open_calls,
    close_open_calls,
    conclude_tools,
    finish_call,
    give_up_started_calls,
    plan_calls,
    record_results,
    start_call,
    time_out_due_calls,
)
from turnwise.states.writes.compaction import (
    commit_boundary,
    insert_clear_boundary,
    note_compaction_failure,
    order_compaction,
)
from turnwise.states.writes.failing import clear_error, restore_promises, set_error
from turnwise.states.writes.history import append_user_message, blank_message, cut_history
from turnwise.states.writes.profile import (
    change_metadata,
    change_title,
    insert_chat,
    mark_archived,
    unmark_archived,
)
from turnwise.states.writes.queue import (
    change_queued,
    clear_queue,
    enqueue_first,
    enqueue_last,
    move_to_head,
    remove_queued,
    take_queue_head,
)
from turnwise.states.writes.settling import commit_partial, mark_settled, note_interrupt, promote_when_settled
from turnwise.states.writes.steps import (
    begin_step,
    commit_reply,
    discard_attempt,
    drop_lease,
    grant_lease,
    start_attempt,
)
from turnwise.states.writes.turns import finish_turn, name_spent_budget, reopen_turn, start_turn

__all__ = [
    "append_user_message",
    "ask_client",
    "begin_step",
    "blank_message",
    "cancel_open_calls",
    "change_metadata",
    "change_queued",
    "change_title",
    "clear_error",
    "clear_queue",
    "close_open_calls",
    "commit_boundary",
    "commit_partial",
    "commit_reply",
    "conclude_tools",
    "cut_history",
    "discard_attempt",
    "drop_lease",
    "enqueue_first",
    "enqueue_last",
    "finish_call",
    "finish_turn",
    "give_up_started_calls",
    "grant_lease",
    "insert_chat",
    "insert_clear_boundary",
    "mark_archived",
    "mark_settled",
    "move_to_head",
    "name_spent_budget",
    "note_compaction_failure",
    "note_interrupt",
    "order_compaction",
    "plan_calls",
    "promote_when_settled",
    "record_results",
    "remove_queued",
    "reopen_turn",
    "restore_promises",
    "set_error",
    "start_attempt",
    "start_call",
    "start_turn",
    "take_queue_head",
    "time_out_due_calls",
    "unmark_archived",
]
