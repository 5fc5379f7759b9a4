"""The actions that rows name: each changes a draft, and thereby the facts, the store and the events."""

from turnwise.states.actions.calls import (
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
from turnwise.states.actions.compaction import (
    commit_boundary,
    give_up_summary,
    insert_clear_boundary,
    note_compaction_failure,
    order_compaction,
    order_room,
    owe_compaction,
)
from turnwise.states.actions.history import append_user_message, cut_history, erase_content
from turnwise.states.actions.profile import (
    change_configuration,
    change_metadata,
    change_title,
    insert_chat,
    mark_archived,
    mark_read,
    unmark_archived,
)
from turnwise.states.actions.queue import (
    change_queued,
    clear_queue,
    clear_schedules,
    enqueue,
    enqueue_first,
    fire_schedule,
    move_to_head,
    put_schedule,
    remove_queued,
    remove_schedule,
    take_queue_head,
    take_steering,
)
from turnwise.states.actions.settling import (
    clear_error,
    commit_partial,
    mark_settled,
    note_interrupt,
    promote_when_settled,
    restore_invariants,
    set_error,
    set_overflow,
)
from turnwise.states.actions.turns import (
    begin_step,
    commit_reply,
    discard_attempt,
    drop_lease,
    fall_back,
    finish_turn,
    grant_lease,
    leave_unpaid_call,
    lose_open_attempt,
    name_spent_budget,
    reopen_turn,
    start_attempt,
    start_due_attempt,
    start_turn,
    take_back_attempt,
)
