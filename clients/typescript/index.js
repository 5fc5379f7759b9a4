// Follows the chats of a turnwise service over HTTP, and folds their events into what a person sees. index.d.ts describes it.

export { fold, liveText } from "./fold.js";
export { follow, watch } from "./follow.js";
export { Problem } from "./stream.js";
