// A `fetch` that remembers the chat's id, and counts heartbeats: clients tell nobody of either.
export const watched = () => {
  const heard = { chat: undefined, pings: 0 };
  heard.fetch = async (...given) => {
    const response = await fetch(...given);
    heard.chat = response.headers.get("Turnwise-Chat") ?? heard.chat;
    if (!response.body) return response;
    const count = new TransformStream({
      transform(piece, controller) {
        heard.pings += new TextDecoder().decode(piece).split(": ping\n").length - 1;
        controller.enqueue(piece);
      },
    });
    const { status, statusText, headers } = response;
    return new Response(response.body.pipeThrough(count), { status, statusText, headers });
  };
  return heard;
};
