// Watch and talk to devices of an Apus cluster in a page (docs/console.md):
//
//     <script type="module" src="https://NODE/apus.js"></script>
//     <apus-player device="garden" node="wss://NODE/v1/ws" token="…" controls></apus-player>

export { Codec, codecNames, Flag, FrameError, makeConfiguration, makeFrame, parseConfiguration,
    parseFrames } from "./apus/frames.js";
export { ApusError, randomHex, Session } from "./apus/session.js";
export { ApusPlayer } from "./apus/player.js";
export { Talk } from "./apus/talk.js";

import { ApusPlayer } from "./apus/player.js";

if (!customElements.get("apus-player")) customElements.define("apus-player", ApusPlayer);
