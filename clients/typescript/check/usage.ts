// What a page writes, for the type checker alone: each wrong line must be an error.

import { fold, follow, liveText, Problem, watch, type Chat, type ChatEvent, type Transcript } from "../index.js";

export async function page(chatUrl: string, signal: AbortSignal): Promise<Transcript> {
  let transcript: Transcript = await (await fetch(`${chatUrl}/transcript`)).json();
  const options = { token: async () => "secret", after: transcript.last_seq, signal };
  try {
    for await (const event of follow(`${chatUrl}/events`, options)) {
      transcript = fold([event], transcript);
      console.log(liveText(transcript), told(event));
    }
  } catch (error) {
    if (error instanceof Problem && error.status === 404) {
      console.log(error.detail, error.fields["chat_id"]);
    }
  }
  // @ts-expect-error a number is no token
  follow(chatUrl, { token: 7 });
  // @ts-expect-error text is no list of events
  fold([`${chatUrl}`], transcript);
  return transcript;
}

export async function sidebar(chats: Map<string, Chat>, signal: AbortSignal): Promise<void> {
  for await (const { number, chat_id, chat } of watch("/events", { after: 7, agent: "support", signal })) {
    if (chat === null) chats.delete(chat_id);
    else if (chat.state === "requires_action" || chat.metadata["pinned"]) chats.set(chat_id, chat);
    console.log(number.toFixed(), chat?.open_calls.map((call) => call.name));
  }
  // @ts-expect-error the stream over all chats does not end when one rests
  watch("/events", { untilRest: true });
}

function told(event: ChatEvent): string {
  switch (event.kind) {
    case "status":
      // @ts-expect-error a state of another name is none
      return event.state === "sleeping" ? "" : event.state;
    case "message":
      return event.message.parts.map((part) => (part.type === "text" ? part.text : part.type)).join("");
    case "part":
      return event.part.delta ?? "";
    case "tool_result":
      return `${event.name}: ${event.outcome}`;
    case "tool_progress":
      return JSON.stringify(event.progress);
    case "queue":
      return `${event.change} ${event.ids.join()}`;
    case "action_required":
      return event.calls.map((call) => call.deadline ?? call.name).join();
    case "retry":
      return event.retry_at;
    case "attempt_discarded":
      return event.reason;
    case "compaction":
      return event.phase;
    case "history_reset":
      return event.first_removed;
    case "turn_finished":
      return event.usage.cost ?? event.stop_reason;
    case "error":
      return event.error.message;
  }
}
