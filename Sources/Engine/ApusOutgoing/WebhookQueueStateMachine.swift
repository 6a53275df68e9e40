package import ApusCore
import OrderedCollections

/// Messages on their way to a webhook: which is sent when, what is sent again, and what is given up.
///
/// A message is sent until the receiver has taken or refused it, or its time is over. The wait after a failed attempt
/// doubles each time. At most ``Limits/sendingMax`` messages are sent at once; messages that were not sent yet come
/// before those that are sent again, so that one that fails does not delay the others.
///
/// A message that is accepted is delivered at least once: an answer may be lost. Receivers recognize repetitions by its
/// id.
///
/// **Bound.** At most ``Limits/countMax`` messages are held, and an eighth of them for each owner. One more is refused.
///
/// Pure: time comes in.
package struct WebhookQueueStateMachine: Sendable {
    package struct Limits: Sendable, Hashable {
        /// Key `push.queue_max`.
        package var countMax = 1024
        /// Key `push.sending_max`.
        package var sendingMax = 16
        /// The wait after the first failed attempt…
        package var retryDelay = Duration.milliseconds(250)
        /// …and the longest one.
        package var retryDelayMax = Duration.seconds(8)

        /// The most messages of one owner.
        package var countOfOwnerMax: Int { max(1, countMax / 8) }

        package init() {}
    }

    /// How an attempt ended.
    package enum Answer: Sendable, Hashable {
        case accepted
        /// The receiver will not take it.
        case refused
        /// There was no answer, or one that asks for another attempt.
        case unavailable
    }

    /// How a message ended.
    package enum End: Sendable, Hashable {
        case accepted
        case refused
        /// Its time was over before the receiver answered.
        case expired
        /// It was of no use any more.
        case cancelled
    }

    package enum Action: Sendable, Hashable {
        /// Send it, and report the answer.
        case send(WebhookMessage)
        case ended(WebhookMessage, End)
    }

    private struct Entry: Sendable {
        let message: WebhookMessage
        var isCancelled = false
        /// Sent after this one, unless the receiver refuses it.
        var next: WebhookMessage?
        var attempts = 0
        var isSending = false
        var readyAt: MonotonicTime
    }

    private let limits: Limits
    /// By id, oldest first.
    private var entries: OrderedDictionary<String, Entry> = [:]
    private var sendingCount = 0

    package init(_ limits: Limits = Limits()) { self.limits = limits }

    package var count: Int { entries.count }

    /// Adds a message. One with the id of a message that is held has no effect.
    ///
    /// - Throws: 10007 if the queue is full.
    package mutating func add(_ message: WebhookMessage, at now: MonotonicTime) throws(ApusError) -> [Action] {
        guard entries[message.id] == nil else { return [] }
        let own = entries.values.count { $0.message.owner == message.owner }
        guard entries.count < limits.countMax, own < limits.countOfOwnerMax else {
            throw ApusError(.overloaded, "too many messages wait")
        }
        entries[message.id] = Entry(message: message, readyAt: now)
        return advance(at: now)
    }

    /// The message is of no use any more. An attempt that is in progress is the last one.
    ///
    /// - Parameter next: sent after it, if the receiver may have the message. One that is not held may have been sent
    ///   before.
    /// - Throws: 10007 if the queue is full.
    package mutating func cancel(
        _ id: String, then next: WebhookMessage? = nil, at now: MonotonicTime
    ) throws(ApusError) -> [Action] {
        guard let entry = entries[id] else {
            guard let next else { return [] }
            return try add(next, at: now)
        }
        entries[id]?.isCancelled = true
        entries[id]?.next = next
        var actions: [Action] = []
        guard !entry.isSending else { return [] }
        end(id, .cancelled, &actions)
        if entry.attempts > 0, let next { actions += try add(next, at: now) }
        return actions
    }

    /// The answer to an attempt.
    package mutating func answered(_ id: String, _ answer: Answer, at now: MonotonicTime) -> [Action] {
        guard let entry = entries[id], entry.isSending else { return [] }
        sendingCount -= 1
        var actions: [Action] = []
        switch answer {
        case .accepted: end(id, .accepted, &actions)
        case .refused: end(id, .refused, &actions)
        case .unavailable where entry.isCancelled: end(id, .cancelled, &actions)
        case .unavailable:
            let delay = Backoff.wait(after: entry.attempts, first: limits.retryDelay, longest: limits.retryDelayMax)
            entries[id]?.isSending = false
            entries[id]?.readyAt = now + delay
        }
        // It takes the place of the one that has ended.
        if let next = entry.next, answer != .refused, entries[next.id] == nil {
            entries[next.id] = Entry(message: next, readyAt: now)
        }
        return actions + advance(at: now)
    }

    /// Sends what is ready, and gives up what is over.
    package mutating func advance(at now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        let over = entries.filter { !$0.value.isSending && $0.value.message.expiresAt <= now }
        for id in over.keys { end(id, .expired, &actions) }
        let ready = entries.values.filter { !$0.isSending && $0.readyAt <= now }
        let ordered = ready.filter { $0.attempts == 0 } + ready.filter { $0.attempts > 0 }
        for entry in ordered.prefix(max(0, limits.sendingMax - sendingCount)) {
            entries[entry.message.id]?.isSending = true
            entries[entry.message.id]?.attempts += 1
            sendingCount += 1
            actions.append(.send(entry.message))
        }
        return actions
    }

    private mutating func end(_ id: String, _ end: End, _ actions: inout [Action]) {
        guard let entry = entries.removeValue(forKey: id) else { return }
        actions.append(.ended(entry.message, end))
    }
}

/// A message for a webhook.
package struct WebhookMessage: Sendable, Hashable {
    /// The same for each repetition of the message; at most 128 bytes of letters, digits, `-`, `_` and `.`.
    package let id: String
    /// JSON.
    package let body: [UInt8]
    /// Who has a share of the messages that wait.
    package let owner: String
    /// It is of no use afterwards.
    package let expiresAt: MonotonicTime

    package init(id: String, owner: String, body: [UInt8], expiresAt: MonotonicTime) {
        (self.id, self.owner, self.body, self.expiresAt) = (id, owner, body, expiresAt)
    }
}
