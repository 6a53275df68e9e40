import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import SwiftProtobuf

/// One dialog of a round: its device, and when it acts.
struct DialogKillScript: Sendable {
    let kind: DialogKillKind
    let device: DialogKillDevice
    /// Where in the time around the kill the dialog acts, 0 to 1.
    let place: Double
    let gate: KillGate
    let ledger: DialogKillLedger

    /// A request without an answer after this time is unanswered.
    private static let answerTime = Duration.seconds(20)
    private static let pause = Duration.milliseconds(20)
    /// The device answers so late that the interruption comes first.
    private static let holdTime = Duration.milliseconds(1500)
    /// After its time, a timer rings within this, or is silent.
    private static let ringTime = Duration.seconds(8)
    /// The first timers ring shortly before the kill: ``DialogKillLoad`` kills so long after they were set.
    static let timerSeconds = 3...4

    /// When it acts, from the kill on…
    private var meanwhile: Duration { .milliseconds(Int64(place * 600) - 100) }
    /// …with what is to meet the kill on its way…
    private var exactly: Duration { .milliseconds(Int64(place * 10) - 5) }
    /// …and later.
    private var later: Duration { .milliseconds(Int64(place * 900) + 100) }

    /// Runs the dialog to its end.
    ///
    /// - Returns: how it has failed; nil if it went as it should.
    func run() async -> DialogKillMiss? {
        await gate.enter()
        let preparation = CallKillScript.Preparation(gate)
        defer {
            preparation.end()
            device.release()
        }
        do throws(DialogKillMiss) {
            try await carryOut(preparation)
            return nil
        } catch {
            return error
        }
    }

    private func carryOut(_ preparation: CallKillScript.Preparation) async throws(DialogKillMiss) {
        switch kind {
        case .idle, .beginning:
            preparation.end()
            try await wait(kind == .idle ? later : exactly)
            try await lock(by: device.app, since: .now())
        case .listening:
            let listening = try await tap()
            preparation.end()
            try await wait(meanwhile)
            try await lock(by: device.session, heard: listening, since: .now())
        case .thinking: try await think(Self.lock, preparation, until: meanwhile)
        case .directing: try await think("hang up", preparation, until: meanwhile)
        case .writing: try await write(preparation)
        case .speaking, .finishing: try await speak(preparation)
        case .asked: try await answer(preparation)
        case .interrupting, .stopping: try await interrupt(preparation)
        case .timer: try await ring(preparation)
        }
    }

    // MARK: - The kinds

    private static let lock = "lock the \(DialogKillDevice.gateName)"

    private func lock(
        by session: ClientSession, heard: String = "", since: MonotonicTime
    ) async throws(DialogKillMiss) {
        let before = device.asked.actions["1"] ?? 0
        try done(await say(Self.lock, by: session, heard: heard), since: since)
        try asked("1", before)
    }

    /// The device answers an action or a directive later.
    private func think(
        _ text: String, _ preparation: CallKillScript.Preparation, until offset: Duration
    ) async throws(DialogKillMiss) {
        let before = device.asked
        device.hold(until: offset, gate)
        async let saying = say(text, by: device.app)
        try await begun(before)
        preparation.end()
        try await wait(offset)
        try done(await saying, since: .now())
        if text.isExactly(Self.lock) { return try asked("1", before.actions["1"] ?? 0) }
        let new = device.asked.directives.filter { before.directives[$0.key] == nil }
        guard new.count == 1 else {
            throw DialogKillMiss(kind: new.isEmpty ? .missing : .twice, text: "\(new.count) directives")
        }
    }

    private func write(_ preparation: CallKillScript.Preparation) async throws(DialogKillMiss) {
        let before = device.asked
        let value = before.lamp.isExactly("1") ? "0" : "1"
        device.hold(until: meanwhile, gate)
        async let saying = say("turn \(value.isExactly("1") ? "on" : "off") the hall lamp", by: device.app)
        try await begun(before)
        preparation.end()
        try await wait(meanwhile)
        let since = MonotonicTime.now()
        let turn = try found(await saying)
        note(since)
        // A setting waits for a device that has lost its connection, and the reply says so.
        guard turn.outcome == .waiting else { return try check(turn) }
        throw DialogKillMiss(kind: .polite, text: turn.reply)
    }

    private func speak(_ preparation: CallKillScript.Preparation) async throws(DialogKillMiss) {
        let before = device.asked.actions["1"] ?? 0
        let listening = try await tap()
        let turn = try found(await say(Self.lock, by: device.session, heard: listening))
        try check(turn)
        preparation.end()
        try await wait(kind == .finishing ? exactly : meanwhile)
        let since = MonotonicTime.now()
        let dialog = try await spoken(turn)
        note(since)
        try expect(dialog.phase == .idle, "\(dialog.phase) after the reply was given")
        // A repetition has the same reply, and nothing is done again.
        let again = try found(await say(Self.lock, id: turn.id, by: device.app))
        try expect(again.reply.isExactly(turn.reply), "the reply has changed to \(again.reply)")
        try asked("1", before)
    }

    /// A person answers a question.
    private func answer(_ preparation: CallKillScript.Preparation) async throws(DialogKillMiss) {
        let before = device.asked.actions["0"] ?? 0
        let listening = try await tap()
        let question = try found(
            await say("unlock the \(DialogKillDevice.gateName)", by: device.session, heard: listening))
        try expect(question.outcome == .asked, "no question: \(question.reply)")
        let dialog = try await spoken(question)
        try expect(dialog.phase == .listening, "\(dialog.phase) after the question was asked")
        preparation.end()
        try await wait(meanwhile)
        let since = MonotonicTime.now()
        try done(await say("yes", by: device.session, heard: dialog.listening), since: since)
        try asked("0", before)
    }

    private func interrupt(_ preparation: CallKillScript.Preparation) async throws(DialogKillMiss) {
        let before = device.asked
        device.hold(until: meanwhile + Self.holdTime, gate)
        async let saying = say(Self.lock, by: device.app)
        try await begun(before)
        preparation.end()
        try await wait(meanwhile)
        let since = MonotonicTime.now()
        if kind == .stopping {
            let stop = ClientStopDialogRequest.with { $0.device = device.id.rawValue }
            let dialog = try await ask(device.observer, stop)
            try expect(dialog.phase == .idle, "\(dialog.phase) after a stop")
        } else {
            let listening = try await tap()
            note(since)
            let turn = try found(await say("what time is it", by: device.session, heard: listening))
            try check(turn)
        }
        let first = try found(await saying)
        try expect(first.outcome == .interrupted, "\(first.outcome), and not interrupted: \(first.reply)")
        if kind == .stopping { note(since) }
        try asked("1", before.actions["1"] ?? 0)
    }

    private func ring(_ preparation: CallKillScript.Preparation) async throws(DialogKillMiss) {
        device.forgetTimers()
        let seconds = place < 0.5 ? Self.timerSeconds.lowerBound : Self.timerSeconds.upperBound
        try? await Task.sleep(for: .milliseconds(Int64(place * 1000) % 500))
        let set = MonotonicTime.now()
        try check(found(await say("set a timer for \(seconds) seconds", by: device.app)))
        preparation.end()
        let end = set + .seconds(seconds) + Self.ringTime
        while device.asked.rings.isEmpty {
            guard MonotonicTime.now() < end, (try? await Task.sleep(for: Self.pause)) != nil else {
                throw DialogKillMiss(kind: .silent, text: "a timer of \(seconds) s has not rung")
            }
        }
        try await wait(later)
        let since = MonotonicTime.now()
        try done(await say("stop", by: device.app), since: since)
        let asked = device.asked
        try expect(asked.rings.count == 1, "\(asked.rings.count) timers rang")
        guard asked.rings.values.allSatisfy({ $0.count == 1 }) else {
            throw DialogKillMiss(kind: .twice, text: "a timer rang twice")
        }
        for late in asked.lateness.values { ledger.rang(late: late) }
        let left = try await ask(device.observer, ClientListTimersRequest.with { $0.device = device.id.rawValue })
        try expect(left.timers.isEmpty, "\(left.timers.count) timers are left")
    }

    // MARK: - Requests

    /// Repeats a request until it is answered, as clients do.
    private func ask<Message: ClientRequestMessage>(
        _ session: ClientSession, _ request: Message
    ) async throws(DialogKillMiss) -> Message.Reply {
        let end = MonotonicTime.now() + Self.answerTime
        while true {
            do throws(ApusError) {
                return try await session.ask(request, timeout: .seconds(5))
            } catch {
                guard VoiceDialog.mayRepeat(error) else {
                    let isWrong = error.code == .versionConflict || error.code == .duplicateMessage
                    throw DialogKillMiss(
                        kind: isWrong ? .wrong : .polite, text: "\(error.code.number) \(error.message)")
                }
                guard MonotonicTime.now() < end, (try? await Task.sleep(for: Self.pause)) != nil else {
                    throw DialogKillMiss(kind: .unanswered, text: "\(error.code.number) \(error.message)")
                }
            }
        }
    }

    private func say(
        _ text: String, id: String? = nil, by session: ClientSession, heard: String = ""
    ) async -> Result<ClientDialogTurn, DialogKillMiss> {
        let request = ClientSayRequest.with {
            ($0.device, $0.text, $0.id, $0.heard) = (device.id.rawValue, text, id ?? VoiceDialog.newID(), heard)
        }
        // Known before it is said: it may have been done, whatever the answer is.
        if id == nil, text.isExactly(Self.lock) { ledger.mayAct(device.id, "1") }
        if text.isExactly("yes") { ledger.mayAct(device.id, "0") }
        do throws(DialogKillMiss) {
            return .success(try await ask(session, request))
        } catch {
            return .failure(error)
        }
    }

    /// - Returns: the id of the listening.
    private func tap() async throws(DialogKillMiss) -> String {
        let request = ClientTapDialogRequest.with {
            ($0.device, $0.id) = (device.id.rawValue, VoiceDialog.newID())
        }
        let dialog = try await ask(device.session, request)
        try expect(dialog.phase == .listening, "\(dialog.phase) after a tap")
        return dialog.listening
    }

    /// The device has given the whole reply.
    private func spoken(_ turn: ClientDialogTurn) async throws(DialogKillMiss) -> ClientDialog {
        let request = ClientSpokenDialogRequest.with { ($0.id, $0.device) = (turn.id, device.id.rawValue) }
        return try await ask(device.session, request)
    }

    // MARK: - Checks

    private func found(
        _ result: Result<ClientDialogTurn, DialogKillMiss>
    ) throws(DialogKillMiss) -> ClientDialogTurn { try result.get() }

    private func done(
        _ result: Result<ClientDialogTurn, DialogKillMiss>, since: MonotonicTime
    ) throws(DialogKillMiss) {
        let turn = try result.get()
        note(since)
        try check(turn)
    }

    private func check(_ turn: ClientDialogTurn) throws(DialogKillMiss) {
        guard turn.outcome != .done else { return }
        let isPolite = turn.outcome == .failed && !turn.reply.isEmpty
        throw DialogKillMiss(kind: isPolite ? .polite : .wrong, text: "\(turn.outcome): \(turn.reply)")
    }

    private func expect(_ isRight: Bool, _ text: @autoclosure () -> String) throws(DialogKillMiss) {
        guard !isRight else { return }
        throw DialogKillMiss(kind: .wrong, text: text())
    }

    /// The device was asked once since then.
    private func asked(_ action: String, _ before: Int) throws(DialogKillMiss) {
        let count = (device.asked.actions[action] ?? 0) - before
        guard count != 1 else { return }
        throw DialogKillMiss(kind: count < 1 ? .missing : .twice, text: "the device was asked \(count) times")
    }

    /// Waits until the device has something to answer.
    private func begun(_ before: DialogKillDevice.Asked) async throws(DialogKillMiss) {
        let end = MonotonicTime.now() + Self.answerTime
        while device.asked.begun == before.begun {
            guard MonotonicTime.now() < end, (try? await Task.sleep(for: .milliseconds(5))) != nil else {
                throw DialogKillMiss(kind: .unanswered, text: "the device was not asked")
            }
        }
    }

    private func wait(_ offset: Duration) async throws(DialogKillMiss) {
        do throws(ApusError) {
            try await gate.wait(until: offset)
        } catch {
            throw DialogKillMiss(kind: .unanswered, text: "\(error)")
        }
    }

    /// An answer has come.
    private func note(_ since: MonotonicTime) {
        ledger.answered(
            DialogKillSpan(kind, device.id, milliseconds: (MonotonicTime.now() - since).milliseconds))
    }
}
