package import ApusCore
import OrderedCollections

/// Decides when messages are sent to a webhook, sent again, and given up.
///
/// A message is sent until the receiver accepts or refuses it, or until it expires. The delay after a failed attempt
/// doubles each time. At most ``Limits/sendingMax`` messages are sent at once. New messages are sent before repeated
/// ones, so that a message that fails does not delay other messages.
///
/// An accepted message is delivered at least once, since its answer may be lost. Receivers recognize repetitions by the
/// id.
///
/// **Limit.** The queue has at most ``Limits/countMax`` messages, and an eighth of them for each owner. Another one is
/// refused.
///
/// Pure value: the time is passed in.
package struct WebhookQueueStateMachine: Sendable {
    package struct Limits: Sendable, Hashable {
        /// Key `push.queue_max`.
        package var countMax = 1024
        /// Key `push.sending_max`.
        package var sendingMax = 16
        /// The delay after the first failed attempt…
        package var retryDelay = Duration.milliseconds(250)
        /// …and the longest delay.
        package var retryDelayMax = Duration.seconds(8)

        /// The most messages of one owner.
        package var countOfOwnerMax: Int { max(1, countMax / 8) }

        package init() {}
    }

    /// The result of an attempt.
    package enum Answer: Sendable, Hashable {
        case accepted
        /// The receiver does not accept the message, and another attempt would not change this.
        case refused
        /// There was no answer, or the status asks for another attempt.
        case unavailable
    }

    /// The final result of a message.
    package enum End: Sendable, Hashable {
        case accepted
        case refused
        /// The message expired before the receiver accepted or refused it.
        case expired
        /// The message was withdrawn with ``WebhookQueueStateMachine/cancel(_:then:at:)``.
        case cancelled
    }

    package enum Action: Sendable, Hashable {
        /// Send the message, and report the answer.
        case send(WebhookMessage)
        case ended(WebhookMessage, End)
    }

    private struct Entry: Sendable {
        let message: WebhookMessage
        var isCancelled = false
        /// The message that follows this one, unless the receiver refuses this one.
        var next: WebhookMessage?
        var attempts = 0
        var isSending = false
        var readyAt: MonotonicTime
    }

    private let limits: Limits
    /// The messages by id, oldest first.
    private var entries: OrderedDictionary<String, Entry> = [:]
    private var sendingCount = 0

    package init(_ limits: Limits = Limits()) { self.limits = limits }

    package var count: Int { entries.count }

    /// Adds a message. Has no effect if a message with the same id is in the queue.
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

    /// Withdraws a message that is no longer needed. An attempt in progress is the last one.
    ///
    /// - Parameter next: a message that is sent instead if the receiver may have the withdrawn one. A message that is
    ///   not in the queue may have been sent before.
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

    /// Applies the result of an attempt.
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
        // The next message takes the place of the one that ended, so the limits do not apply.
        if let next = entry.next, answer != .refused, entries[next.id] == nil {
            entries[next.id] = Entry(message: next, readyAt: now)
        }
        return actions + advance(at: now)
    }

    /// Sends the messages that are ready, and removes expired ones.
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
    /// The same for every repetition of the message; at most 128 bytes of letters, digits, `-`, `_` and `.`.
    package let id: String
    /// JSON.
    package let body: [UInt8]
    /// The owner against whose limit the message counts.
    package let owner: String
    /// The message is not sent after this time.
    package let expiresAt: MonotonicTime

    package init(id: String, owner: String, body: [UInt8], expiresAt: MonotonicTime) {
        (self.id, self.owner, self.body, self.expiresAt) = (id, owner, body, expiresAt)
    }
}
