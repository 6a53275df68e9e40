// Shows the key frames of a stream as stills, where a browser has neither WebCodecs nor a media source for its codec but plays
// files of it: each key frame becomes an MP4 of one picture.

import { fragment, initSegment } from "./fmp4.js";
import { Flag, isSameFormat } from "./frames.js";
import { mimeType } from "./mse.js";
import { captureDelay } from "./webcodecs.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */
/** @typedef {import("./frames.js").MediaFrame} MediaFrame */

/** A picture that has not come by then is given up. */
const loadMs = 5000;
/** So many pictures in a row that cannot be shown end the way. */
const failuresMax = 3;

export class StillRenderer {
    /** @param {import("./webcodecs.js").RendererHandlers} handlers */
    constructor(handlers) {
        this.handlers = handlers;
        this.element = document.createElement("canvas");
        this.video = document.createElement("video");
        Object.assign(this.video, { muted: true, playsInline: true, preload: "auto" });
        /** @type {TrackConfiguration | null} */
        this.track = null;
        this.number = -1;
        /** @type {{frame: MediaFrame, since: number} | null} */
        this.loading = null;
        /**
         * The newest key frame that came meanwhile.
         * @type {MediaFrame | null}
         */
        this.next = null;
        this.failures = 0;
        this.isClosed = false;
        this.counts = { dropped: 0 };
        this.video.addEventListener("loadeddata", () => this.#loaded());
        this.video.addEventListener("error", () => this.#failed(this.video.error?.message || "a picture cannot be decoded"));
    }

    /** @param {TrackConfiguration} track */
    static supports(track) {
        const type = track.isVideo ? mimeType(track) : null;
        return type !== null && document.createElement("video").canPlayType(type) !== "";
    }

    /**
     * @param {number} number
     * @param {TrackConfiguration} configuration
     */
    configure(number, configuration) {
        if (!configuration.isVideo || (this.track && this.number !== number)) return;
        if (this.track && !isSameFormat(this.track, configuration)) this.next = null;
        [this.track, this.number] = [configuration, number];
    }

    /** @param {MediaFrame} frame */
    add(frame) {
        if (this.isClosed || frame.track !== this.number || !(frame.flags & Flag.key)) return;
        if (this.loading && performance.now() - this.loading.since > loadMs) this.#failed("a picture does not load");
        if (this.isClosed) return;
        if (this.loading) this.next = frame;
        else this.#load(frame);
    }

    /** @param {MediaFrame} frame */
    #load(frame) {
        if (!this.track) return;
        this.loading = { frame, since: performance.now() };
        const sample = { time: 0, duration: 40_000, composition: 0, isKey: true, payload: frame.payload };
        const parts = [initSegment(this.track), fragment(1, 0, [sample])];
        const old = this.video.src;
        this.video.src = URL.createObjectURL(new Blob(/** @type {any} */ (parts), { type: mimeType(this.track) ?? "" }));
        if (old) URL.revokeObjectURL(old);
    }

    #loaded() {
        if (this.isClosed || !this.loading) return;
        const { frame } = this.loading;
        const { videoWidth: width, videoHeight: height } = this.video;
        if (this.element.width !== width || this.element.height !== height) {
            this.element.width = width;
            this.element.height = height;
            this.handlers.onSize(width, height);
        }
        this.element.getContext("2d")?.drawImage(this.video, 0, 0);
        this.failures = 0;
        this.handlers.onDelay(captureDelay(frame.capture));
        this.handlers.onDrawn();
        this.#continue();
    }

    /** @param {string} reason */
    #failed(reason) {
        if (this.isClosed || !this.loading) return;
        this.failures += 1;
        this.counts.dropped += 1;
        if (this.failures >= failuresMax) return this.handlers.onFailed(reason);
        this.#continue();
    }

    #continue() {
        this.loading = null;
        const { next } = this;
        this.next = null;
        if (next) this.#load(next);
    }

    /** Each key frame stands for itself. */
    gap() {}

    /**
     * There is no sound.
     * @param {boolean} isMuted
     * @returns {Promise<boolean>} true if it is as wanted
     */
    async setMuted(isMuted) { return isMuted; }

    get hasSound() { return false; }
    get bufferMs() { return 0; }

    /**
     * The picture on the screen, as PNG.
     * @returns {Promise<Blob | null>}
     */
    snapshot() { return new Promise(resolve => this.element.toBlob(resolve, "image/png")); }

    /**
     * An element that picture in picture takes.
     * @returns {Promise<HTMLVideoElement>}
     */
    async pictureElement() {
        const video = document.createElement("video");
        video.muted = true;
        video.srcObject = this.element.captureStream();
        await video.play();
        return video;
    }

    close() {
        this.isClosed = true;
        const { src } = this.video;
        this.video.removeAttribute("src");
        this.video.load();
        if (src) URL.revokeObjectURL(src);
    }
}
