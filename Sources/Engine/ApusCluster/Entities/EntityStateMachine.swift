package import ApusCore
import DequeModule

/// One activation of an entity with durability (D15): it decides which message runs, what the state is, and when
/// answers are sent.
///
/// **State first.** No message is carried out before the state is loaded. If the load fails, the activation ends, and
/// the waiting messages are refused: they were not carried out.
///
/// **One message at a time**, in the order of arrival. A message that fails changes nothing.
///
/// **Answers follow their changes.** The answer to a message that changed the state is sent once a commit with the
/// change is confirmed. So are the answers to all messages after it, since those may have seen the change. One commit
/// is in progress at a time, and the next one includes all changes made in the meantime. Messages to others are sent
/// with the answer.
///
/// **Changes that may be lost** are part of the state at once, and are written with the next change that may not. Their
/// answers wait for nothing that they have changed. If the activation ends before, they are lost without an error.
///
/// **The initial state** may include changes of an earlier activation that were never confirmed. They are written once
/// more before anything is answered.
///
/// **Requests with an id** are carried out once. A repetition receives the stored answer, once the change of the
/// request is confirmed. Another request with the id is refused with 21000.
///
/// A commit that ends with `.lost` ends the activation, because its state may differ from the stored one. A caller that
/// waits for a change receives the error, which is 10008 if the change may or may not be stored. A message that had not
/// run yet is answered 10009: it was not carried out.
///
/// Pure value: confined to the entity's executor. `Call` is a message that waits to run. `Ending` is what to send when
/// its change is confirmed.
package struct EntityStateMachine<Content: Sendable, Call: Sendable, Ending: Sendable>: Sendable {
    package struct Configuration: Sendable {
        /// True if the state outlives the activation.
        package var isKept: Bool
        /// Messages that wait, run or wait for their change.
        package var callCountMax = 4096
        package var memory = RequestMemory.Configuration()
        /// True for two states of which one need not be written in place of the other.
        package var isSame: @Sendable (Content, Content) -> Bool

        package init(isKept: Bool, isSame: @escaping @Sendable (Content, Content) -> Bool) {
            (self.isKept, self.isSame) = (isKept, isSame)
        }
    }

    /// A message, as the machine needs it.
    package struct Request: Sendable {
        package var call: Call
        /// Nil if its caller does not repeat it, or if it only reads.
        package var id: RequestID?

        package init(call: Call, id: RequestID? = nil) { (self.call, self.id) = (call, id) }
    }

    /// The result of a message.
    package struct Result: Sendable {
        /// The state afterwards; nil if the message failed or only read.
        package var content: Content?
        /// The answer to a repetition; nil if the message failed or has no id.
        package var answer: RequestMemory.Answer?
        /// The message's changes to the entity's reminders, which are part of the state.
        package var reminders: [ReminderChange] = []
        /// What the message adds to the outbox, which is written with its change.
        package var entries: [OutboxEntry] = []
        /// The change of the content need not outlast the activation. Has no effect on a message with an id, or with
        /// changes of reminders or the outbox.
        package var mayBeLost = false
        package var ending: Ending

        package init(
            content: Content?, answer: RequestMemory.Answer? = nil, reminders: [ReminderChange] = [],
            entries: [OutboxEntry] = [], mayBeLost: Bool = false, ending: Ending
        ) {
            (self.content, self.answer, self.reminders, self.ending) = (content, answer, reminders, ending)
            (self.entries, self.mayBeLost) = (entries, mayBeLost)
        }
    }

    /// Everything that outlives the activation. It is written in one step.
    package struct State: Sendable {
        package var content: Content
        package var memory: RequestMemory
        package var reminders: [Reminder]
        /// What was added to the outbox since the last commit.
        package var entries: [OutboxEntry] = []

        package init(content: Content, memory: RequestMemory, reminders: [Reminder] = []) {
            (self.content, self.memory, self.reminders) = (content, memory, reminders)
        }
    }

    package enum CommitOutcome: Sendable {
        case confirmed
        /// The change is stored at this node, and it is unknown whether elsewhere too. A later commit confirms both.
        case unconfirmed(ApusError)
        /// The stored state differs from that of this activation.
        case lost(ApusError)
    }

    package enum Action: Sendable {
        /// Read the state; `loaded` or `loadFailed` follows.
        case load
        /// Carry it out on this state. `ended` follows, and nothing else is carried out until then.
        case run(Request, Content)
        /// Write it, over a state with the earlier reminders; `committed` follows.
        case commit(State, earlier: [Reminder])
        /// Send the result of the message.
        case finish(Ending)
        /// Send an earlier answer.
        case repeatAnswer(Call, RequestMemory.Answer)
        /// Refuse the message for this reason. It was not carried out, unless it is 10008: then it may have been.
        case refuse(Call, ApusError)
        case fail(Ending, ApusError)
        /// The change remains in the state. Its caller receives an error, because it is unknown whether the change
        /// lasts.
        case leaveOpen(Ending, ApusError)
        /// The activation has ended. The next message needs another one.
        case leave
    }

    /// An ending or an answer that waits for a commit.
    private enum Held: Sendable {
        case ending(Ending)
        case answer(Call, RequestMemory.Answer)
    }

    private enum Phase: Sendable {
        case new
        case loading
        case ready
        case over
    }

    private let configuration: Configuration
    private var phase = Phase.new
    /// Messages that wait for the state, or for the message that runs.
    private var waiting: Deque<Request> = []
    /// The message that runs. Without one, nothing waits once the state is there.
    private var running: Request?
    package private(set) var state: State
    /// The reminders of the state that was read or committed last.
    private var keptReminders: [Reminder] = []
    private var isCommitting = false
    private var committingEntryCount = 0
    /// There are changes since the current commit was made.
    private var isChanged = false
    private var committing: [Held] = []
    private var next: [Held] = []

    package init(initial: Content, configuration: Configuration) {
        self.configuration = configuration
        state = State(content: initial, memory: RequestMemory(configuration: configuration.memory))
    }

    /// Messages that wait, run or wait for their change.
    package var callCount: Int { waiting.count + (running == nil ? 0 : 1) + committing.count + next.count }
    /// Outbox entries that are not confirmed to be stored.
    package var unstoredCount: Int { committingEntryCount + state.entries.count }
    package var isIdle: Bool { callCount == 0 && !isCommitting && !isChanged }
    package var isOver: Bool { phase == .over }

    // MARK: Messages

    /// A message arrived.
    package mutating func came(_ request: Request) -> [Action] {
        guard phase != .over else { return [.refuse(request.call, ApusError(.moved))] }
        guard callCount < configuration.callCountMax else {
            return [.refuse(request.call, ApusError(.overloaded, "the entity is overloaded"))]
        }
        var actions: [Action] = []
        if phase == .ready, running == nil {
            start(request, &actions)
        } else {
            waiting.append(request)
            if phase == .new {
                phase = .loading
                actions.append(.load)
            }
        }
        return actions
    }

    /// Starts messages that wait, in order, until one runs.
    private mutating func startNext(_ actions: inout [Action]) {
        while running == nil, let request = waiting.popFirst() { start(request, &actions) }
    }

    private mutating func start(_ request: Request, _ actions: inout [Action]) {
        if let id = request.id {
            switch state.memory.find(id) {
            case .new: break
            case .answered(let answer): return hold(.answer(request.call, answer), &actions)
            case .isOfAnother:
                let error = ApusError(.duplicateMessage, "another request has this id")
                return actions.append(.refuse(request.call, error))
            }
        }
        running = request
        actions.append(.run(request, state.content))
    }

    /// The running message was carried out, or has failed.
    package mutating func ended(_ result: Result) -> [Action] {
        var actions: [Action] = []
        guard let request = running else { preconditionFailure("no message runs") }
        running = nil
        guard phase == .ready else {
            actions.append(.fail(result.ending, Self.outcomeUnknown))
            return actions
        }
        var isChange = false
        if let new = result.content, !configuration.isSame(new, state.content) {
            state.content = new
            isChange = !result.mayBeLost
        }
        if let id = request.id, let answer = result.answer {
            state.memory.remember(id, answer)
            isChange = true
        }
        for change in result.reminders {
            state.reminders.apply(change)
            isChange = true
        }
        if !result.entries.isEmpty {
            state.entries += result.entries
            isChange = true
        }
        if isChange, configuration.isKept { isChanged = true }
        hold(.ending(result.ending), &actions)
        startNext(&actions)
        commit(&actions)
        return actions
    }

    // MARK: Commits

    /// Sends it at once if no change that it may have seen is unconfirmed.
    private mutating func hold(_ held: Held, _ actions: inout [Action]) {
        if isChanged {
            next.append(held)
        } else if isCommitting {
            committing.append(held)
        } else {
            send(held, &actions)
        }
    }

    private func send(_ held: Held, _ actions: inout [Action]) {
        switch held {
        case .ending(let ending): actions.append(.finish(ending))
        case .answer(let call, let answer): actions.append(.repeatAnswer(call, answer))
        }
    }

    private func fail(_ held: [Held], _ error: ApusError, _ actions: inout [Action]) {
        for held in held {
            switch held {
            case .ending(let ending): actions.append(.fail(ending, error))
            case .answer(let call, _): actions.append(.refuse(call, error))
            }
        }
    }

    private mutating func commit(_ actions: inout [Action]) {
        guard isChanged, !isCommitting, phase == .ready else { return }
        isChanged = false
        isCommitting = true
        committing = next
        next = []
        actions.append(.commit(state, earlier: keptReminders))
        keptReminders = state.reminders
        committingEntryCount = state.entries.count
        state.entries = []
    }

    /// The result of the current commit.
    package mutating func committed(_ outcome: CommitOutcome) -> [Action] {
        var actions: [Action] = []
        guard isCommitting else { return actions }
        isCommitting = false
        committingEntryCount = 0
        let held = committing
        committing = []
        switch outcome {
        case .confirmed: for held in held { send(held, &actions) }
        case .unconfirmed(let error):
            for held in held {
                switch held {
                case .ending(let ending): actions.append(.leaveOpen(ending, error))
                case .answer(let call, _): actions.append(.refuse(call, error))
                }
            }
            // Commits once more, so that a caller that saw the change is not answered before it is confirmed.
            isChanged = phase == .ready
        case .lost(let error):
            fail(held, error, &actions)
            end(&actions, error)
            return actions
        }
        commit(&actions)
        return actions
    }

    // MARK: Activation

    /// The state was read; nil if the entity has none yet.
    ///
    /// - Parameter isConfirmed: True if every change in it is confirmed. Otherwise the state is written once more, and
    ///   nothing is answered before that is confirmed.
    package mutating func loaded(_ kept: State?, isConfirmed: Bool = true) -> [Action] {
        guard phase == .loading else { return [] }
        phase = .ready
        if let kept { state = kept }
        keptReminders = state.reminders
        isChanged = !isConfirmed && configuration.isKept
        var actions: [Action] = []
        startNext(&actions)
        commit(&actions)
        return actions
    }

    /// The state cannot be read. Nothing was carried out.
    package mutating func loadFailed(_ error: ApusError) -> [Action] {
        guard phase == .loading else { return [] }
        var actions: [Action] = []
        phase = .over
        while let request = waiting.popFirst() { actions.append(.refuse(request.call, error)) }
        actions.append(.leave)
        return actions
    }

    /// The shard left, or the entity was released. A commit in progress still decides about the callers that wait for
    /// it.
    package mutating func leave() -> [Action] {
        guard phase != .over else { return [] }
        var actions: [Action] = []
        end(&actions, Self.outcomeUnknown)
        return actions
    }

    private mutating func end(_ actions: inout [Action], _ error: ApusError) {
        phase = .over
        fail(next, error, &actions)
        next = []
        isChanged = false
        while let request = waiting.popFirst() { actions.append(.refuse(request.call, ApusError(.moved))) }
        actions.append(.leave)
    }

    private static var outcomeUnknown: ApusError {
        ApusError(.linkLost, "the shard left this node while the message was handled")
    }
}
