import ApusCore

/// A message on its way through an entity.
///
/// Isolation: immutable. The closures that it holds are called once.
final class EntityWork<Content: EntityContent>: Sendable {
    /// The result of a handler.
    struct Outcome: Sendable {
        /// The answer to a repetition of the request; nil if the request failed.
        var answer: RequestMemory.Answer?
        var isFailure = false
        /// Sends the answer.
        var send: @Sendable () -> Void
    }

    enum Body: Sendable {
        case change(@Sendable (inout Content, inout EntityScope) -> Outcome)
        case read(@Sendable (Content, EntityScope) -> Outcome)
    }

    let call: EntityCall
    let body: Body
    let refuse: @Sendable (ApusError) -> Void
    let repeatAnswer: @Sendable (RequestMemory.Answer) -> Void

    init(
        _ call: EntityCall, _ body: Body, refuse: @escaping @Sendable (ApusError) -> Void,
        repeatAnswer: @escaping @Sendable (RequestMemory.Answer) -> Void
    ) {
        (self.call, self.body, self.refuse, self.repeatAnswer) = (call, body, refuse, repeatAnswer)
    }

    /// The id of a request whose answer is stored; nil if it only reads, or its caller does not repeat it.
    var id: RequestID? {
        if case .read = body { nil } else { call.request }
    }
}

/// What an entity sends once a change is confirmed.
///
/// Isolation: immutable. It is an object because the machine and its actions pass it on several times.
final class EntityEnding: Sendable {
    let send: @Sendable () -> Void
    let refuse: @Sendable (ApusError) -> Void
    let call: EntityCall
    let tellings: [any EntityTelling]
    let reminders: [ReminderChange]
    let entries: [OutboxEntry]
    let isDone: Bool

    /// - Parameter scope: of a message that was carried out; nil if there is nothing else to send.
    init<Content: EntityContent>(
        _ work: EntityWork<Content>, send: @escaping @Sendable () -> Void, _ scope: EntityScope? = nil
    ) {
        (self.send, refuse, call) = (send, work.refuse, work.call)
        (tellings, reminders) = (scope?.tellings ?? [], scope?.reminderChanges ?? [])
        entries = scope?.entries ?? []
        isDone = scope?.isDone ?? false
    }
}
