import ApusCore

/// The owner's view of the events that wait for a hook: when a node delivers them, and how often that has failed.
/// The events are records.
///
/// A node delivers one batch at a time. If it dies, the next attempt begins when its time is over.
///
/// Pure value; times are Unix milliseconds of the cluster's clock.
extension HookQueue {
    /// The wait after the first failed attempt; it doubles with each…
    static let retryDelay: Int64 = 500
    /// …up to this.
    static let retryDelayMax: Int64 = 60_000

    /// An event was written.
    ///
    /// - Returns: false if too many wait: the event is to be removed.
    package mutating func written(_ customer: String, _ hook: String, at now: Int64, countMax: Int) -> Bool {
        (self.customer, self.hook) = (customer, hook)
        guard waiting < countMax else {
            dropped += 1
            return false
        }
        waiting += 1
        if sendingUntilMs > now {
            more = true
        } else if nextMs == 0 {
            nextMs = now
        }
        return true
    }

    /// Events wait in the records. A queue that has lost its state, with the deaths of its owner and its standby,
    /// begins again.
    package mutating func found(_ customer: String, _ hook: String, at now: Int64) {
        guard dueMs == nil else { return }
        (self.customer, self.hook, waiting, nextMs) = (customer, hook, max(waiting, 1), now)
    }

    /// Whether a node is to deliver now. It then has `time` milliseconds.
    package mutating func begins(at now: Int64, for time: Int64) -> Bool {
        // A node that has died does not report. A clock that went back stops neither an attempt nor the next one.
        let isSending = sendingUntilMs > now && sendingUntilMs <= now + time
        let isDue = nextMs > 0 && (nextMs <= now || nextMs > now + Self.retryDelayMax)
        guard !isSending, isDue || sendingUntilMs > 0 else { return false }
        (sendingUntilMs, nextMs, more) = (now + time, 0, false)
        return true
    }

    /// A node has ended to deliver.
    package mutating func ended(_ report: HookDelivered, at now: Int64) {
        sendingUntilMs = 0
        waiting -= min(waiting, report.delivered + report.expired)
        dropped += report.expired
        guard report.failure.isEmpty else {
            failures += 1
            failure = report.failure
            let delay = min(Self.retryDelay << Int64(min(failures - 1, 16)), Self.retryDelayMax)
            nextMs = now + delay
            return
        }
        (failures, failure) = (0, "")
        if report.more || more {
            nextMs = now
        } else {
            (waiting, nextMs) = (0, 0)
        }
        more = false
    }

    /// When the queue is to be looked at next; nil: not before an event comes.
    package var dueMs: Int64? { nextMs > 0 ? nextMs : sendingUntilMs > 0 ? sendingUntilMs : nil }
}
