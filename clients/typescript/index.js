// Follows turnwise chats over HTTP, and folds their events into what a person sees. index.d.ts describes it.

export { fold, liveText } from "./fold.js";
export { follow, Problem } from "./follow.js";
