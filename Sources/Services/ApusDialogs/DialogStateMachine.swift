package import ApusCore
import SwiftProtobuf

/// The dialog of one device: what was said, what is being done, and what was replied (VA-6, VA-7, VA-9).
///
/// **Phases.** Idle, listening, thinking, speaking, finished, and idle again. A tap, a wake that has won, and a
/// sentence interrupt the previous one in any phase; a stop ends any phase. ``mayFollow(_:_:)`` has all legal changes.
/// Listening, thinking and speaking have an end in time, so no dialog stays in a phase.
///
/// **Listening** has an id. A sentence that was heard begins only while the dialog listens with that id, so nothing
/// that was heard before a stop, a tap or a louder device of the room is carried out. A sentence that was typed begins
/// in any phase. After a question to a person who talks to the device, the dialog listens again when the device has
/// given the reply, and not before: a microphone that opens earlier hears the reply.
///
/// **Once.** A sentence has an id. A repetition finds the existing turn and its plan. A node that carries out the plan
/// again therefore does the same, with the same ids.
///
/// **A question** is open until its time ends, or the next sentence comes. Only the client that was asked can answer
/// it. A sentence that was read with another question than the open one is not begun.
///
/// Pure value. Times are Unix milliseconds of the cluster's clock.
package struct DialogStateMachine: Sendable {
    package enum Action: Sendable, Equatable {
        /// The owner's node must carry out a sentence.
        case work(DialogTurn)
        /// The owner's node must publish changes, in this order.
        case publish([DialogChange])
    }

    package private(set) var state: DialogState
    private let configuration: DialogConfiguration

    package init(restoring state: DialogState, _ configuration: DialogConfiguration) {
        (self.state, self.configuration) = (state, configuration)
    }

    /// The time of the next call of ``advance(at:_:)``; nil: none.
    package var nextMs: Int64? {
        [state.deadlineMs, state.againMs].filter { $0 > 0 }.min()
    }

    /// Whether a phase may follow another one.
    package static func mayFollow(_ next: DialogPhase, _ phase: DialogPhase) -> Bool {
        switch (phase, next) {
        case (.unspecified, .listening), (.idle, .listening), (.listening, .thinking), (.thinking, .speaking),
            (.speaking, .finished), (.finished, .idle):
            true
        // A tap and a sentence interrupt, and a stop ends.
        case (.listening, .listening), (.thinking, .listening), (.speaking, .listening): true
        case (.listening, .idle), (.thinking, .idle), (.speaking, .idle): true
        default: false
        }
    }

    /// The question that a client can answer at a time. After the clock has gone back, there is none.
    package func question(of account: String, _ access: String, at now: Int64) -> DialogQuestion? {
        let question = state.question
        let span = Int64(configuration.questionTime.milliseconds)
        guard state.hasQuestion, now < question.endsMs, now >= question.endsMs - span,
            question.account.isExactly(account), question.access.isExactly(access)
        else { return nil }
        return question
    }

    // MARK: - Events

    /// A message for the account whose data of the device begins at this time. The dialog of a former account is
    /// forgotten.
    ///
    /// - Parameter dataSince: 0: the message concerns the dialog of any account.
    /// - Throws: 8003 if the device has a later account.
    package mutating func enter(_ dataSince: UInt64) throws(ApusError) {
        guard dataSince != 0, dataSince != state.dataSinceMs else { return }
        guard dataSince > state.dataSinceMs else {
            throw ApusError(.illegalRelation, "the device has another account since")
        }
        forget()
        state.dataSinceMs = dataSince
    }

    /// Nothing is left but the version and the stops, which continue to grow.
    private mutating func forget() {
        state = .with { [state] in
            ($0.version, $0.dataSinceMs, $0.stops) = (state.version, state.dataSinceMs, state.stops)
        }
    }

    /// A sentence was read, and begins.
    ///
    /// - Returns: its turn. A turn without an end must be carried out.
    package mutating func begin(_ message: DialogBegin, at now: Int64, _ actions: inout [Action]) -> DialogBegun {
        if let known = turn(message.id) { return .with { $0.turn = known } }
        guard message.heard.isEmpty || isListening(message.heard) else { return .with { $0.isOver = true } }
        guard (question(of: message.speaker.account, message.speaker.access, at: now)?.number ?? 0) == message.question
        else {
            return .with { $0.isStale = true }
        }
        interrupt(at: now)
        var turn = DialogTurn.with {
            ($0.id, $0.text, $0.language, $0.beganMs) = (message.id, message.text, message.language, now)
            ($0.plan, $0.speaker) = (message.plan, message.speaker)
            // A sentence that was typed meanwhile takes the place of the one that is expected.
            if state.phase == .listening { $0.heard = state.listening.id }
        }
        turn.plan.choices = []
        state.clearQuestion()
        var phases: [DialogPhase] = []
        if state.phase != .listening { enter(.listening, &phases) }
        enter(.thinking, &phases)
        state.clearListening()
        if message.plan.steps.isEmpty {
            turn.endedMs = now
            enter(.speaking, &phases)
            if !message.plan.choices.isEmpty {
                state.question = .with {
                    $0.choices = message.plan.choices
                    ($0.account, $0.access) = (message.speaker.account, message.speaker.access)
                    $0.endsMs = now + Int64(configuration.questionTime.milliseconds)
                }
            }
        }
        state.turns = state.turns.suffix(DialogConfiguration.turnsMax - 1) + [turn]
        schedule(at: now)
        note(phases, turn, at: now, &actions)
        if state.hasQuestion { state.question.number = state.version }
        return .with { $0.turn = turn }
    }

    /// The steps of a sentence have ended.
    ///
    /// - Returns: the turn; the known one if the sentence has ended already; an empty one if it is forgotten.
    package mutating func finish(
        _ message: DialogFinish, at now: Int64, _ actions: inout [Action]
    ) -> DialogTurn {
        guard let index = state.turns.firstIndex(where: { $0.id == message.id }) else { return DialogTurn() }
        let isInterrupted = state.turns[index].plan.outcome == .interrupted
        guard state.turns[index].endedMs == 0 || (isInterrupted && state.turns[index].plan.reply.isEmpty) else {
            return state.turns[index]
        }
        state.turns[index].plan.steps = message.steps
        for step in state.turns[index].plan.steps.indices { state.turns[index].plan.steps[step].context = "" }
        state.turns[index].plan.reply = message.reply
        if state.turns[index].endedMs == 0 { state.turns[index].endedMs = now }
        var phases: [DialogPhase] = []
        if !isInterrupted {
            state.turns[index].plan.outcome = message.outcome
            if index == state.turns.count - 1, state.phase == .thinking { enter(.speaking, &phases) }
            schedule(at: now)
        }
        note(phases, state.turns[index], at: now, &actions)
        return state.turns[index]
    }

    /// The device listens from now on: it was tapped, or has heard a wake phrase and may listen (VA-7). Has no effect
    /// for an id that is known.
    ///
    /// - Parameter joins: if the device listens already, it continues with that, for as long again.
    package mutating func listen(
        _ listening: DialogListening, joins: Bool = false, at now: Int64, _ actions: inout [Action]
    ) {
        guard !state.known.contains(listening.id) else { return }
        if joins, state.phase == .listening {
            remember(listening.id)
            return schedule(at: now)
        }
        state.continued = 0
        interrupt(at: now)
        open(listening, at: now, [], &actions)
    }

    /// A louder device of the room is to listen instead. If this one has not heard a sentence yet, its dialog is idle,
    /// and stays so if the message to listen comes late.
    ///
    /// - Returns: false if a sentence has begun: the other device must not listen.
    package mutating func yield(_ id: String, at now: Int64, _ actions: inout [Action]) -> Bool {
        guard !state.turns.contains(where: { $0.heard.isExactly(id) }) else { return false }
        if isListening(id) {
            endListening(DialogTurn.with { ($0.heard, $0.plan.outcome) = (id, .interrupted) }, at: now, &actions)
        } else {
            remember(id)
            if state.deadlineMs == 0 { state.deadlineMs = now + Int64(configuration.historyTime.milliseconds) }
        }
        return true
    }

    /// The device has given the whole reply to a sentence. After a question that a person was asked at the device, it
    /// listens again.
    package mutating func spoken(_ id: String, at now: Int64, _ actions: inout [Action]) {
        guard let turn = state.turns.last, turn.id.isExactly(id) else { return }
        let asksPerson = state.hasQuestion && !turn.heard.isEmpty
        var phases: [DialogPhase] = []
        switch state.phase {
        case .speaking:
            enter(.finished, &phases)
            enter(.idle, &phases)
        // A slow voice needs more time than a reader.
        case .idle: guard asksPerson else { return }
        default: return
        }
        guard asksPerson, state.continued < DialogConfiguration.continuedMax, !state.known.contains(id) else {
            schedule(at: now)
            return note(phases, turn, at: now, &actions)
        }
        state.continued += 1
        let listening = DialogListening.with {
            ($0.id, $0.language, $0.speaker) = (id, turn.language, turn.speaker)
        }
        open(listening, at: now, phases, &actions)
    }

    /// Ends the phase (VA-9). Requests to devices are not withdrawn, and their results are noted with the turn.
    package mutating func stop(at now: Int64, _ actions: inout [Action]) {
        state.stops += 1
        guard state.phase == .listening || state.phase == .thinking || state.phase == .speaking else {
            state.clearQuestion()
            return
        }
        interrupt(at: now)
        state.clearQuestion()
        guard state.phase != .listening else {
            let id = state.listening.id
            return endListening(
                DialogTurn.with { ($0.heard, $0.plan.outcome) = (id, .interrupted) }, at: now, &actions)
        }
        var phases: [DialogPhase] = []
        enter(.idle, &phases)
        schedule(at: now)
        note(phases, state.turns.last ?? DialogTurn(), at: now, &actions)
    }

    /// The clock may have passed what there was to wait for.
    package mutating func advance(at now: Int64, _ actions: inout [Action]) {
        let isIdle = state.phase == .idle || state.phase == .unspecified
        if isIdle, now >= state.deadlineMs, state.unpublished.isEmpty { return forget() }
        if state.deadlineMs > 0, now >= state.deadlineMs {
            var phases: [DialogPhase] = []
            switch state.phase {
            case .listening:
                endListening(nothingHeard(at: now), at: now, &actions)
                if state.againMs > 0, now >= state.againMs { repeatAll(at: now, &actions) }
                return
            case .thinking:
                endLate(at: now)
                enter(.speaking, &phases)
            case .speaking:
                enter(.finished, &phases)
                enter(.idle, &phases)
            default: return state.deadlineMs = now + DialogConfiguration.againTime
            }
            schedule(at: now)
            note(phases, state.turns.last ?? DialogTurn(), at: now, &actions)
        }
        if state.againMs > 0, now >= state.againMs { repeatAll(at: now, &actions) }
    }

    /// The dialog is at another node than before, which may have died: what it was asked to do is asked again.
    package mutating func restored(at now: Int64, _ actions: inout [Action]) { repeatAll(at: now, &actions) }

    /// The changes of these versions are published.
    package mutating func published(_ versions: [UInt64]) {
        state.unpublished.removeAll { versions.contains($0.version) }
        if state.unpublished.isEmpty, state.phase != .thinking { state.againMs = 0 }
    }

    /// Bounds the times that are waited for, after the clock may have gone back.
    package mutating func bound(at now: Int64) {
        let longest = max(configuration.historyTime, configuration.thinkingTime, .seconds(60))
        state.deadlineMs = min(state.deadlineMs, now + Int64(longest.milliseconds))
        if state.phase == .thinking {
            state.deadlineMs = min(state.deadlineMs, now + Int64(configuration.thinkingTime.milliseconds))
        }
        if state.phase == .listening {
            state.deadlineMs = min(state.deadlineMs, now + Int64(configuration.listeningTime.milliseconds))
        }
        state.againMs = min(state.againMs, now + DialogConfiguration.againTime)
    }

    // MARK: - Parts

    private func turn(_ id: String) -> DialogTurn? { state.turns.last { $0.id == id } }

    /// Whether the device listens with this id.
    package func isListening(_ id: String) -> Bool { state.phase == .listening && state.listening.id.isExactly(id) }

    private mutating func remember(_ id: String) {
        guard !state.known.contains(id) else { return }
        state.known = state.known.suffix(DialogConfiguration.knownMax - 1) + [id]
    }

    /// - Parameter before: the phases that come first.
    private mutating func open(
        _ listening: DialogListening, at now: Int64, _ before: [DialogPhase], _ actions: inout [Action]
    ) {
        var phases = before
        enter(.listening, &phases)
        remember(listening.id)
        state.listening = listening
        schedule(at: now)
        note(phases, state.turns.last ?? DialogTurn(), at: now, &actions)
    }

    /// - Parameter turn: what is published of it. It is no sentence, and is not kept.
    private mutating func endListening(_ turn: DialogTurn, at now: Int64, _ actions: inout [Action]) {
        var phases: [DialogPhase] = []
        enter(.idle, &phases)
        schedule(at: now)
        note(phases, turn, at: now, &actions)
        state.clearListening()
    }

    private func nothingHeard(at now: Int64) -> DialogTurn {
        .with {
            ($0.heard, $0.language, $0.endedMs) = (state.listening.id, state.listening.language, now)
            ($0.plan.reply, $0.plan.outcome) = (DialogLanguage($0.language).texts.nothingHeard, .nothingHeard)
        }
    }

    private mutating func enter(_ next: DialogPhase, _ phases: inout [DialogPhase]) {
        assert(Self.mayFollow(next, state.phase), "\(next) does not follow \(state.phase)")
        state.phase = next
        phases.append(next)
    }

    /// Ends a sentence that is being carried out. Its steps continue, because devices have received them.
    private mutating func interrupt(at now: Int64) {
        guard state.phase == .thinking, let index = state.turns.indices.last, state.turns[index].endedMs == 0 else {
            return
        }
        state.turns[index].endedMs = now
        state.turns[index].plan.outcome = .interrupted
    }

    private mutating func endLate(at now: Int64) {
        guard let index = state.turns.indices.last, state.turns[index].endedMs == 0 else { return }
        let language = DialogLanguage(state.turns[index].language)
        state.turns[index].endedMs = now
        state.turns[index].plan.outcome = .failed
        state.turns[index].plan.reply = language.texts.tookTooLong
    }

    /// Sets the end of the phase.
    private mutating func schedule(at now: Int64) {
        switch state.phase {
        case .thinking:
            state.deadlineMs = now + Int64(configuration.thinkingTime.milliseconds)
            state.againMs = now + DialogConfiguration.againTime
        case .listening: state.deadlineMs = now + Int64(configuration.listeningTime.milliseconds)
        case .speaking:
            state.deadlineMs = now + DialogConfiguration.speakingTime(state.turns.last?.plan.reply ?? "")
        default: state.deadlineMs = now + Int64(configuration.historyTime.milliseconds)
        }
    }

    private mutating func note(_ phases: [DialogPhase], _ turn: DialogTurn, at now: Int64, _ actions: inout [Action]) {
        let previous = state.version
        // Versions grow although the states of a shard were lost.
        state.version = previous == 0 ? UInt64(max(1, now)) : previous + 1
        var change = DialogChange.with { [state] in
            ($0.version, $0.previousVersion, $0.phases, $0.turn) = (state.version, previous, phases, turn)
            if state.hasListening { $0.listening = state.listening }
        }
        for index in change.turn.plan.steps.indices { change.turn.plan.steps[index].context = "" }
        state.unpublished = state.unpublished.suffix(DialogConfiguration.unpublishedMax - 1) + [change]
        if state.againMs == 0 { state.againMs = now + DialogConfiguration.againTime }
        trim()
        actions.append(.publish([change]))
    }

    /// Keeps the state within its bound.
    private mutating func trim() {
        while state.turns.count > 1 || state.unpublished.count > 1 {
            guard let bytes: [UInt8] = try? state.serializedBytes(), bytes.count > DialogConfiguration.stateByteCountMax
            else { return }
            if state.turns.count > 1 { state.turns.removeFirst() } else { state.unpublished.removeFirst() }
        }
    }

    private mutating func repeatAll(at now: Int64, _ actions: inout [Action]) {
        state.againMs = 0
        if !state.unpublished.isEmpty {
            actions.append(.publish(state.unpublished))
            state.againMs = now + DialogConfiguration.againTime
        }
        if state.phase == .thinking, let turn = state.turns.last {
            actions.append(.work(turn))
            state.againMs = now + DialogConfiguration.againTime
        }
    }
}
