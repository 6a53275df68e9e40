// When a frame is shown. Pure: times are parameters, in milliseconds of a clock that does not step.

/** The bounds of the playback rate that keeps the delay. A change of 5 % is not seen, and with speech not heard. */
export const rateMin = 0.95;
export const rateMax = 1.05;

/**
 * The rate at which what is `behind` milliseconds later than wanted is played.
 *
 * Within `dead` the rate is 1. Beyond it the rate grows with the distance, to its bound at `full` milliseconds.
 *
 * @param {number} behind
 */
export function rateFor(behind, dead = 15, full = 250) {
    if (Math.abs(behind) <= dead) return 1;
    const rate = 1 + 0.05 * Math.max(-1, Math.min(1, (behind - Math.sign(behind) * dead) / (full - dead)));
    return Math.max(rateMin, Math.min(rateMax, rate));
}

/**
 * Decides when the frames of a stream are due.
 *
 * The shortest way of the last seconds is the base. What most frames were later than that is the jitter. A frame is due at
 * its time plus the base plus a buffer for the jitter. The offset between both clocks moves to this by at most 5 %, so
 * that motion and speech stay even. It jumps only at the start, and when it is wrong by more than `jumpMs`.
 */
export class Pacer {
    /** @param {{bufferMinMs?: number, bufferMaxMs?: number, jumpMs?: number, startMs?: number}} [options] */
    constructor(options = {}) {
        this.bufferMinMs = options.bufferMinMs ?? 0;
        this.bufferMaxMs = options.bufferMaxMs ?? 800;
        this.jumpMs = options.jumpMs ?? 1000;
        this.startMs = options.startMs ?? 700;
        /** @type {number | null} */
        this.offset = null;
        this.started = 0;
        this.adjusted = 0;
        this.windowStart = 0;
        this.newBase = Infinity;
        this.oldBase = Infinity;
        /** How late the newest frames were, beyond the base. */
        this.late = new Float32Array(lateCount);
        this.lateIndex = 0;
        this.lateMs = 0;
        this.jumps = 0;
    }

    /** Begins again: another run of the publisher has another clock. */
    reset() {
        this.offset = null;
        this.newBase = Infinity;
        this.oldBase = Infinity;
        this.late.fill(0);
        this.lateMs = 0;
    }

    /** The buffer for the jitter, in milliseconds. */
    get bufferMs() {
        // A short jitter is not worth a delay: the pictures are drawn when they come.
        const wanted = this.lateMs < 12 ? 0 : this.lateMs + 4;
        return Math.min(Math.max(wanted, this.bufferMinMs), this.bufferMaxMs);
    }

    /**
     * A frame has come.
     * @param {number} ptsMs
     * @param {number} now
     */
    arrived(ptsMs, now) {
        const delay = now - ptsMs;
        if (this.offset === null) {
            this.started = now;
            this.adjusted = now;
            this.windowStart = now;
        }
        if (now - this.windowStart > windowMs) {
            this.windowStart = now;
            this.oldBase = this.newBase;
            this.newBase = delay;
        }
        this.newBase = Math.min(this.newBase, delay);
        const base = Math.min(this.newBase, this.oldBase);
        const isStarting = now - this.started < this.startMs;
        // The key frame and what follows it came in one burst, and are old: they say nothing about the jitter.
        if (!isStarting) this.#note(Math.min(delay - base, this.bufferMaxMs));
        const wanted = base + this.bufferMs;
        if (this.offset === null || isStarting) {
            this.offset = wanted;
            this.adjusted = now;
        } else if (Math.abs(this.offset - wanted) > this.jumpMs) {
            this.offset = wanted;
            this.adjusted = now;
            this.jumps += 1;
        } else {
            this.#steer(wanted, now);
        }
    }

    /**
     * 19 of 20 frames are to be in time: one outage, such as the death of a node, does not delay all that follows.
     * @param {number} late
     */
    #note(late) {
        this.late[this.lateIndex++ % lateCount] = late;
        if (this.lateIndex % 8 === 0) this.lateMs = this.late.slice().sort()[Math.floor(lateCount * 0.95)];
    }

    /**
     * @param {number} wanted
     * @param {number} now
     */
    #steer(wanted, now) {
        const span = Math.max(0, now - this.adjusted);
        this.adjusted = now;
        const offset = this.offset ?? wanted;
        const rate = rateFor(offset - wanted, 2, 60);
        const step = span * Math.abs(rate - 1);
        this.offset = offset > wanted ? Math.max(wanted, offset - step) : Math.min(wanted, offset + step);
    }

    /**
     * When a frame is shown.
     * @param {number} ptsMs
     */
    due(ptsMs) {
        return ptsMs + (this.offset ?? 0);
    }
}
const windowMs = 8000;
const lateCount = 200;

/**
 * The rate, or the jump, that keeps a media element behind the end of its buffer by `target` seconds.
 *
 * @param {number} lag the seconds from the shown time to the end of the buffer
 * @param {number} target
 * @returns {{rate: number, jump: boolean}} `jump`: it is far behind, and continues at the target
 */
export function elementPace(lag, target, jumpSeconds = 1.5) {
    if (lag > target + jumpSeconds) return { rate: 1, jump: true };
    return { rate: rateFor((lag - target) * 1000, 40, 250), jump: false };
}

/** Waits between attempts: doubled up to a bound, with jitter, so that many pages do not come at once. */
export class Backoff {
    /** @param {{firstMs?: number, longestMs?: number, random?: () => number}} [options] */
    constructor(options = {}) {
        this.firstMs = options.firstMs ?? 50;
        this.longestMs = options.longestMs ?? 2000;
        this.random = options.random ?? Math.random;
        this.next = this.firstMs;
    }

    reset() { this.next = this.firstMs; }

    /** The next wait in milliseconds. */
    wait() {
        const wait = this.next * (0.5 + this.random());
        this.next = Math.min(this.next * 2, this.longestMs);
        return wait;
    }
}
