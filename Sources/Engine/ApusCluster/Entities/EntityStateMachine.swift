package import ApusCore
import DequeModule

/// One activation of an entity whose state outlives it (D15): whose turn it is, what its state is, and which answers
/// may leave.
///
/// **State first.** No message is carried out before the state was loaded. A load that fails ends the activation, and
/// the messages that waited are refused: they were not carried out.
///
/// **One message at a time**, in the order of arrival, unless its method only reads and interleaves. A message that
/// fails changes nothing.
///
/// **Answers follow their changes.** A message that changed the state is answered once a commit that has the change is
/// confirmed; so is every message after it, since it may have seen the change. One commit is under way at a time, and
/// the next has all that happened meanwhile. What a message sends to others leaves with its answer.
///
/// **What an activation begins with** may have changes of an earlier one that were never confirmed. They are written
/// once more before anybody hears of them.
///
/// **Requests with an id** are carried out once. A repetition gets the remembered answer, when the change that came
/// with it is confirmed.
///
/// A commit that ends with `.lost` ends the activation: what this one holds may differ from what is kept. Whoever
/// waits for a change is told why, 10008 if it may be kept or not. Who had not got its turn is told that it was not
/// carried out (10009).
///
/// Pure: confined to the entity's executor. `Call` is a message that waits for its turn, `Ending` what is to be sent
/// when its change is confirmed.
package struct EntityStateMachine<Content: Sendable & Equatable, Call: Sendable, Ending: Sendable>: Sendable {
    package struct Configuration: Sendable {
        /// Whether the state is kept beyond the activation.
        package var isKept: Bool
        /// Messages that wait, run or wait for their change.
        package var callCountMax = 4096
        package var memory = RequestMemory.Configuration()

        package init(isKept: Bool) { self.isKept = isKept }
    }

    /// A message, as far as the machine is concerned.
    package struct Request: Sendable {
        package var call: Call
        /// Nil if its caller does not repeat it.
        package var id: RequestID?
        /// It only reads, and does not wait for its turn.
        package var interleaves: Bool

        package init(call: Call, id: RequestID? = nil, interleaves: Bool = false) {
            (self.call, self.id, self.interleaves) = (call, id, interleaves)
        }
    }

    /// What a message came to.
    package struct Result: Sendable {
        /// The state afterwards; nil if the message failed or only read.
        package var content: Content?
        /// What a repetition is answered; nil if the message failed or has no id.
        package var answer: RequestMemory.Answer?
        /// What it did to the entity's reminders, which are part of the state.
        package var reminders: [ReminderChange] = []
        package var ending: Ending

        package init(
            content: Content?, answer: RequestMemory.Answer? = nil, reminders: [ReminderChange] = [], ending: Ending
        ) {
            (self.content, self.answer, self.reminders, self.ending) = (content, answer, reminders, ending)
        }
    }

    /// All that outlives the activation; it is written in one step.
    package struct State: Sendable {
        package var content: Content
        package var memory: RequestMemory
        package var reminders: [Reminder]

        package init(content: Content, memory: RequestMemory, reminders: [Reminder] = []) {
            (self.content, self.memory, self.reminders) = (content, memory, reminders)
        }
    }

    package enum CommitOutcome: Sendable {
        case confirmed
        /// The change is kept here, and nobody knows whether it is elsewhere; a later commit confirms both.
        case unconfirmed(ApusError)
        /// What is kept is not what this activation holds.
        case lost(ApusError)
    }

    package enum Action: Sendable {
        /// Read the state; `loaded` or `loadFailed` follows.
        case load
        /// Carry it out on this state; `ended` follows, and nothing else is carried out until then.
        case run(Request, Content)
        /// Let it read this state; `interleavedEnded` follows.
        case read(Request, Content)
        /// Write it, over a state with the earlier reminders; `committed` follows.
        case commit(State, earlier: [Reminder])
        /// Send what the message came to.
        case finish(Ending)
        /// Send an earlier answer.
        case repeatAnswer(Call, RequestMemory.Answer)
        /// The message was not carried out, for this reason; or was, where the ending's error is 10008.
        case refuse(Call, ApusError)
        case fail(Ending, ApusError)
        /// The change is part of the state from now on, and its caller is told that nobody knows whether it lasts.
        case leaveOpen(Ending, ApusError)
        /// The activation is over; the next message is to be another one's.
        case leave
    }

    /// What waits for a commit.
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
    private var waitingForState: Deque<Request> = []
    private var mailbox: EntityMailbox<Request>
    package private(set) var state: State
    /// Whose turn it is.
    private var running: RequestID?
    /// Repetitions of requests that are being carried out.
    private var followers: [(id: RequestID, call: Call)] = []
    /// Of the state that was read or committed last.
    private var keptReminders: [Reminder] = []
    private var isCommitting = false
    /// There is a change since the commit under way was made.
    private var isChanged = false
    private var committing: [Held] = []
    private var next: [Held] = []

    package init(initial: Content, configuration: Configuration) {
        self.configuration = configuration
        state = State(content: initial, memory: RequestMemory(configuration: configuration.memory))
        mailbox = EntityMailbox(countMax: configuration.callCountMax)
    }

    /// Messages that wait, run or wait for their change.
    package var callCount: Int {
        waitingForState.count + mailbox.count + followers.count + committing.count + next.count
    }
    package var isIdle: Bool { callCount == 0 && !isCommitting && !isChanged }
    package var isOver: Bool { phase == .over }

    // MARK: Messages

    /// A message came.
    package mutating func came(_ request: Request) -> [Action] {
        guard phase != .over else { return [.refuse(request.call, ApusError(.moved))] }
        guard callCount < configuration.callCountMax else {
            return [.refuse(request.call, ApusError(.overloaded, "the entity has too much to do"))]
        }
        switch phase {
        case .new:
            phase = .loading
            waitingForState.append(request)
            return [.load]
        case .loading:
            waitingForState.append(request)
            return []
        case .ready, .over: break
        }
        var actions: [Action] = []
        admit(request, &actions)
        return actions
    }

    private mutating func admit(_ request: Request, _ actions: inout [Action]) {
        if let id = request.id, !request.interleaves {
            switch state.memory.begin(id) {
            case .new: break
            case .underWay: return followers.append((id, request.call))
            case .answered(let answer): return hold(.answer(request.call, answer), &actions)
            }
        }
        if request.interleaves {
            guard mailbox.interleaved() else {
                return actions.append(.refuse(request.call, ApusError(.overloaded)))
            }
            actions.append(.read(request, state.content))
            return
        }
        switch mailbox.came(request) {
        case .now: start(request, &actions)
        case .later: break
        case .refused:
            if let id = request.id { state.memory.giveUp(id) }
            actions.append(.refuse(request.call, ApusError(.overloaded)))
        }
    }

    private mutating func start(_ request: Request, _ actions: inout [Action]) {
        running = request.id
        actions.append(.run(request, state.content))
    }

    /// The message whose turn it was has been carried out, or has failed.
    package mutating func ended(_ result: Result) -> [Action] {
        var actions: [Action] = []
        let id = running
        running = nil
        guard phase == .ready else {
            actions.append(.fail(result.ending, Self.outcomeUnknown))
            return actions
        }
        var isChange = false
        if let new = result.content, new != state.content {
            state.content = new
            isChange = true
        }
        if let id {
            if let answer = result.answer {
                state.memory.end(id, answer)
                isChange = true
            } else {
                state.memory.giveUp(id)
            }
        }
        for change in result.reminders {
            state.reminders.apply(change)
            isChange = true
        }
        if isChange, configuration.isKept { isChanged = true }
        hold(.ending(result.ending), &actions)
        follow(id, &actions)
        if let request = mailbox.ended() { start(request, &actions) }
        commit(&actions)
        return actions
    }

    /// A message that interleaves has read.
    package mutating func interleavedEnded(_ ending: Ending) -> [Action] {
        var actions: [Action] = []
        mailbox.interleavedEnded()
        hold(.ending(ending), &actions)
        return actions
    }

    /// Repetitions that came while the request was carried out: they have its answer, or their turn where it failed.
    private mutating func follow(_ id: RequestID?, _ actions: inout [Action]) {
        guard let id, !followers.isEmpty else { return }
        let mine = followers.filter { $0.id == id }
        followers.removeAll { $0.id == id }
        for follower in mine { admit(Request(call: follower.call, id: id), &actions) }
    }

    // MARK: Commits

    /// Sends it now where nothing that it may have seen is unconfirmed.
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
    }

    /// What became of the commit under way.
    package mutating func committed(_ outcome: CommitOutcome) -> [Action] {
        var actions: [Action] = []
        guard isCommitting else { return actions }
        isCommitting = false
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
            // Once more, so that whoever sees the change is not answered before it is confirmed.
            isChanged = phase == .ready
        case .lost(let error):
            fail(held, error, &actions)
            end(&actions, error)
            return actions
        }
        commit(&actions)
        return actions
    }

    // MARK: Life

    /// The state was read; nil if the entity has none yet.
    ///
    /// - Parameter isConfirmed: Every change in it is. Otherwise an earlier activation may have made one whose
    ///   confirmation never came; it is written once more, and nobody is answered before that is confirmed.
    package mutating func loaded(_ kept: State?, isConfirmed: Bool = true) -> [Action] {
        guard phase == .loading else { return [] }
        phase = .ready
        if let kept { state = kept }
        keptReminders = state.reminders
        isChanged = !isConfirmed && configuration.isKept
        var actions: [Action] = []
        while let request = waitingForState.popFirst() { admit(request, &actions) }
        commit(&actions)
        return actions
    }

    /// The state cannot be read. Nothing was carried out.
    package mutating func loadFailed(_ error: ApusError) -> [Action] {
        guard phase == .loading else { return [] }
        var actions: [Action] = []
        phase = .over
        while let request = waitingForState.popFirst() { actions.append(.refuse(request.call, error)) }
        actions.append(.leave)
        return actions
    }

    /// The shard left, or the entity was released. A commit under way still decides over those who wait for it.
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
        for request in waitingForState { actions.append(.refuse(request.call, ApusError(.moved))) }
        waitingForState = []
        for request in mailbox.takeWaiting() { actions.append(.refuse(request.call, ApusError(.moved))) }
        for follower in followers { actions.append(.refuse(follower.call, Self.outcomeUnknown)) }
        followers = []
        actions.append(.leave)
    }

    private static var outcomeUnknown: ApusError {
        ApusError(.linkLost, "the shard left this node while the message was handled")
    }
}
