import ApusCluster
import ApusCommands
import ApusContract
import ApusCore
import ApusCrypto
import ApusGrammar
import ApusSessions
import ApusThings
import ApusTimers
import CoreMetrics
import Foundation
import SwiftProtobuf
import Synchronization

// Sentences at the node of the dialog's owner, or at that of the client if the owner has just died.

extension DialogService {
    /// The most readings of a sentence. It is read again if the question of the dialog changed after the reading.
    private static let attemptsMax = 4
    /// The steps of a sentence that are carried out at once.
    private static let stepsAtOnceMax = 8
    /// After these errors of a step, the device has received it, or may have.
    private static let mayHaveArrived: [ErrorCode] = [.answerTimedOut, .deadlineExceeded, .linkLost]
    /// What remains of the time of a sentence for its end.
    private static let reserve = Duration.milliseconds(500)

    /// Reads a sentence, carries it out, and returns its turn.
    ///
    /// - Throws: 10007 over ``DialogConfiguration/runningMax``, 10005 after the client's time, 10021 if the records
    ///   cannot be read.
    func run(_ message: DialogRun) async throws(ApusError) -> DialogTurn {
        guard let device = DeviceID(rawValue: message.device), AccountID(rawValue: message.speaker.account) != nil
        else {
            throw ApusError(.malformed)
        }
        let isFull = inProgress.withLock { all in
            all.count >= configuration.runningMax
                || all.values.count { $0 == message.speaker.account } >= configuration.accountRunningMax
        }
        guard !isFull else {
            throw ApusError(.overloaded, "the node carries out too many sentences of the account, or of all; try again")
        }
        let deadline = MonotonicTime.now() + min(.milliseconds(message.leftMs), configuration.thinkingTime)
        var before: DialogBefore?
        var guest: GuestAnswer?
        for _ in 0..<Self.attemptsMax {
            let look = DialogLook.with {
                $0.dataSinceMs = message.dataSinceMs
                ($0.account, $0.access) = (message.speaker.account, message.speaker.access)
            }
            let seen = try await ref(device).ask(look, timeout: try deadline.timeLeft())
            if let known = seen.turns.last(where: { $0.id == message.id }) {
                try known.check(message)
                return try await carryOut(known, of: device)
            }
            // Before a server of the integrator sees it.
            guard message.heard.isEmpty || (seen.phase == .listening && seen.listening.id.isExactly(message.heard))
            else { throw ApusError(.versionConflict, "the device does not listen any more") }
            let account = AccountID(unchecked: message.speaker.account)
            var reader = try await reader(
                of: message.language, account, device, lastReply: seen.turns.last?.plan.reply ?? "")
            reader.context = message.context
            reader.mayConfirm = !message.speaker.isDevice || reader.isConfirming
            let question = seen.hasQuestion ? seen.question : nil
            if before == nil { before = await self.before(message, reader.home, device, until: deadline) }
            var plan = reader.plan(of: message.text, before, guest, answering: question)
            if plan.isRejected, guest == nil {
                let text = before?.text ?? message.text
                guest = await guestAnswer(text, reader, after: seen.turns, of: account, until: deadline)
                plan = reader.plan(of: message.text, before, guest, answering: question)
            }
            if reader.needsTimers(plan) {
                reader.timers = try await timers.list(of: device, for: account, timeout: try deadline.timeLeft())
                plan = reader.plan(of: message.text, before, guest, answering: question)
            }
            if plan.steps.isEmpty, plan.outcome != .asked {
                plan.reply = await after(
                    message.id, message.text, plan.reply, plan.outcome, message.speaker, reader.home, device,
                    until: deadline)
            }
            let begin = DialogBegin.with {
                ($0.id, $0.text, $0.speaker, $0.dataSinceMs) = (
                    message.id, message.text, message.speaker, message.dataSinceMs
                )
                $0.language = reader.language.grammar.tag
                $0.question = question?.number ?? 0
                ($0.plan, $0.heard) = (plan, message.heard)
            }
            let begun = try await ref(device).ask(begin, timeout: try deadline.timeLeft())
            guard !begun.isOver else { throw ApusError(.versionConflict, "the device does not listen any more") }
            guard !begun.isStale else { continue }
            try begun.turn.check(message)
            (begin.plan.outcome == .notUnderstood ? notUnderstood : said).increment()
            return try await carryOut(begun.turn, of: device, in: reader.home)
        }
        throw ApusError(.overloaded, "too many talk to the device at once; try again")
    }

    /// Does what a sentence asks for, which the dialog has stored, and returns its turn. A repetition does it once. The
    /// time of the client does not bound it.
    ///
    /// - Parameter home: that of the speaker, if it was read already.
    /// - Parameter waits: if this node carries it out already, waits for its end. Otherwise returns the turn as it is.
    func carryOut(
        _ turn: DialogTurn, of device: DeviceID, in home: VoiceHome? = nil, waits: Bool = true
    ) async throws(ApusError) -> DialogTurn {
        guard turn.endedMs == 0 else { return turn }
        let key = "\(device)/\(turn.id)"
        let isNew = inProgress.withLock { all in
            guard all[key] == nil else { return false }
            all[key] = turn.speaker.account
            return true
        }
        guard isNew else { return waits ? try await follow(turn, of: device) : turn }
        defer { inProgress.withLock { $0[key] = nil } }
        let thinking = configuration.thinkingTime
        let left = Duration.milliseconds(turn.beganMs - view.clock.wallMilliseconds()) + thinking
        let deadline = MonotonicTime.now() + min(max(left, Self.reserve), thinking)
        let steps = await perform(turn, of: device, until: deadline)
        // The steps that were cancelled say nothing. The dialog has them continued.
        guard !Task.isCancelled else { throw ApusError(.cancelled) }
        let reply = DialogReply(turn.plan, steps, DialogLanguage(turn.language))
        let text = await after(turn, reply, in: home, device, until: deadline)
        let finish = DialogFinish.with {
            ($0.id, $0.steps, $0.reply, $0.outcome) = (turn.id, steps, text, reply.outcome)
        }
        let ended = try await ref(device).ask(finish, timeout: max((try? deadline.timeLeft()) ?? .zero, Self.reserve))
        guard ended.id.isEmpty else { return ended }
        // Newer sentences have pushed it out of the dialog's memory.
        var forgotten = turn
        (forgotten.plan.steps, forgotten.plan.reply, forgotten.plan.outcome) = (steps, text, reply.outcome)
        forgotten.endedMs = view.clock.wallMilliseconds()
        return forgotten
    }

    /// Waits for a sentence that this node carries out already.
    private func follow(_ turn: DialogTurn, of device: DeviceID) async throws(ApusError) -> DialogTurn {
        var pauses = Backoff(first: .milliseconds(20), longest: .milliseconds(500))
        let end = MonotonicTime.now() + configuration.thinkingTime
        while true {
            let pause = pauses.next()
            guard MonotonicTime.now() + pause < end, (try? await Task.sleep(for: pause)) != nil else {
                throw ApusError(.deadlineExceeded, "the sentence is being carried out")
            }
            let seen = try await ref(device).ask(DialogLook(), timeout: try end.timeLeft())
            guard let known = seen.turns.last(where: { $0.id == turn.id }), known.endedMs == 0 else {
                return seen.turns.last { $0.id == turn.id } ?? turn
            }
        }
    }

    private func perform(
        _ turn: DialogTurn, of device: DeviceID, until deadline: MonotonicTime
    ) async -> [DialogStep] {
        let authority = Authority(turn.speaker)
        let steps = turn.plan.steps
        return await withTaskGroup(of: (Int, DialogStep).self) { group in
            var ended = steps
            var next = 0
            func add() {
                let (index, step) = (next, steps[next])
                next += 1
                group.addTask {
                    let id = RequestID(turn.id, of: device, turn.speaker.account, step: index)
                    return (index, await self.perform(step, id: id, of: turn, authority, until: deadline))
                }
            }
            while next < min(steps.count, Self.stepsAtOnceMax) { add() }
            while let (index, step) = await group.next() {
                ended[index] = step
                if next < steps.count { add() }
            }
            return ended
        }
    }

    /// - Parameter id: of this step: a repetition is carried out once.
    private func perform(
        _ step: DialogStep, id: RequestID, of turn: DialogTurn, _ authority: Authority, until deadline: MonotonicTime
    ) async -> DialogStep {
        var step = step
        do throws(ApusError) {
            // The rights of now: the sentence may answer a question of half a minute ago.
            try sessions.check(authority)
            let device = try DeviceID(checking: step.device, "the device's id")
            let isRead = step.kind == .read
            let access = try await sessions.access(to: device, for: authority.account, control: !isRead).get()
            let end = deadline + (.zero - Self.reserve)
            switch step.kind {
            case .read:
                let read = try await things.read(step.path, of: device, access, timeout: try end.timeLeft())
                step.value = read.json
                guard step.value.utf8.count <= DialogConfiguration.valueByteCountMax else {
                    step.value = ""
                    throw ApusError(.modelUnreadable, "the value is too long for a reply")
                }
                // A setting that waits is not the state of the device, and neither is what an absent device had.
                step.result = access.presence.online == .offline ? .queued : read.isPending ? .sent : .done
            case .write: step.result = try await write(step, device, access, id: id, authority, until: end)
            case .adjust: try await adjust(&step, device, access, id: id, authority, until: end)
            case .act:
                let content = try CommandContent(path: step.path, json: step.json)
                step.result = try await act(content, device, id: id, authority, until: end)
            case .direct:
                if !step.other.isEmpty {
                    let other = try DeviceID(checking: step.other, "the device's id")
                    _ = try await sessions.access(to: other, for: authority.account, control: false).get()
                }
                let content = try ClientDialogDirective(step, id: id, of: turn).command
                step.result = try await act(content, device, id: id, authority, until: end)
            case .skill: step.value = try await ask(skill: step, device, id: id, of: turn, authority, until: end)
            case .timer: try await change(timers: step, device, id: id, authority, until: end)
            case .unspecified, .UNRECOGNIZED: throw ApusError(.malformed)
            }
            if step.kind == .timer || step.kind == .skill { step.result = .done }
        } catch {
            (step.result, step.code) = (.failed, error.code.number)
            step.message = String(error.message.prefix(DialogConfiguration.valueByteCountMax / 4))
        }
        return step
    }

    private func act(
        _ content: CommandContent, _ device: DeviceID, id: RequestID, _ authority: Authority, until end: MonotonicTime
    ) async throws(ApusError) -> DialogResult {
        let timeout = try end.timeLeft()
        do throws(ApusError) {
            _ = try await commands.act(content, id: Data(id.bytes), on: device, by: authority, timeout: timeout)
            return .done
        } catch {
            guard Self.mayHaveArrived.contains(error.code) else { throw error }
            return .sent
        }
    }

    private func change(
        timers step: DialogStep, _ device: DeviceID, id: RequestID, _ authority: Authority, until end: MonotonicTime
    ) async throws(ApusError) {
        guard let action = TimerAction(rawValue: step.path), let number = Int64(step.json) else {
            throw ApusError(.malformed)
        }
        var call = EntityCall()
        (call.identity, call.request) = (authority.identities.first, id)
        let (account, timeout) = (authority.account, try end.timeLeft())
        switch action {
        case .set:
            _ = try await timers.set(
                .after(.milliseconds(number)), on: device, for: account, call: call, timeout: timeout)
        case .alarm: _ = try await timers.set(.at(number), on: device, for: account, call: call, timeout: timeout)
        case .cancel:
            _ = try await timers.cancel(
                .id(UInt32(clamping: number)), of: device, for: account, call: call, timeout: timeout)
        case .pause, .resume:
            _ = try await timers.change(
                UInt32(clamping: number), isPaused: action == .pause, of: device, for: account, call: call,
                timeout: timeout)
        case .stop: _ = try await timers.stop(on: device, for: account, call: call, timeout: timeout)
        }
    }

    /// Changes a setting by a step. A repetition has no effect: the write has the id of the step. The value of the
    /// reply is what the setting is then.
    private func adjust(
        _ step: inout DialogStep, _ device: DeviceID, _ access: DeviceAccess, id: RequestID, _ authority: Authority,
        until end: MonotonicTime
    ) async throws(ApusError) {
        let read = try await things.read(step.path, of: device, access, timeout: try end.timeLeft())
        guard let what = VoiceControl.What(rawValue: step.what), let value = Double(read.json),
            let amount = Double(step.json)
        else { throw ApusError(.actionUnknown, "the setting is not a number") }
        var change = step
        change.json = what.stepped(value, by: amount)
        step.result = try await write(change, device, access, id: id, authority, until: end)
        // The setting is written, whether it can be read again or not.
        step.json = change.json
        if let left = try? end.timeLeft(),
            let now = try? await things.read(step.path, of: device, access, timeout: left)
        {
            step.json = now.json
        }
    }

    /// Writes a setting, and waits for the device to confirm it.
    private func write(
        _ step: DialogStep, _ device: DeviceID, _ access: DeviceAccess, id: RequestID, _ authority: Authority,
        until end: MonotonicTime
    ) async throws(ApusError) -> DialogResult {
        var call = EntityCall()
        (call.identity, call.request) = (authority.identities.first, id)
        let timeout = try end.timeLeft()
        let written: ThingRan
        do throws(ApusError) {
            written = try await things.write(
                step.path, step.json, of: device, by: authority, timeout: timeout, call: call)
        } catch {
            guard Self.mayHaveArrived.contains(error.code) else { throw error }
            return .sent
        }
        guard written.isPending else { return written.isUnchanged ? .already : .done }
        guard access.presence.online == .online else { return .queued }
        let confirmEnd = min(end, .now() + configuration.confirmTime)
        var pauses = Backoff(first: .milliseconds(10), longest: .milliseconds(200))
        while MonotonicTime.now() < confirmEnd {
            guard (try? await Task.sleep(for: pauses.next())) != nil else { break }
            guard
                let seen = try? await things.read(
                    step.path, of: device, access, timeout: try confirmEnd.timeLeft())
            else { continue }
            guard seen.isPending else {
                return seen.version == written.version || seen.json.isExactly(step.json) ? .done : .sent
            }
        }
        return .sent
    }
}

extension DialogTurn {
    /// - Throws: 21000 if the id was of another sentence.
    fileprivate func check(_ message: DialogRun) throws(ApusError) {
        guard text.isExactly(message.text) else {
            throw ApusError(.duplicateMessage, "another sentence has this id")
        }
    }
}

extension RequestID {
    /// The id of a step, derived from the sentence's id, its speaker, the listening device, and the step's place.
    init(_ sentence: String, of device: DeviceID, _ account: String, step index: Int) {
        let bytes = SHA256.hash(data: Array("\(device)/\(account)/\(sentence)/\(index)".utf8))
        let halves = [bytes.prefix(8), bytes.dropFirst(8).prefix(8)].map { half in
            half.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        }
        self.init(high: halves[0], low: halves[1])
    }

    /// 16 bytes.
    var bytes: [UInt8] {
        [high, low].flatMap { number in withUnsafeBytes(of: number.bigEndian) { Array($0) } }
    }
}

extension ClientDialogDirective {
    /// - Parameter id: of the step: a repetition of the directive has the same one.
    fileprivate init(_ step: DialogStep, id: RequestID, of turn: DialogTurn) {
        let parts = step.path.split(separator: ".")
        self.init(
            namespace: String(parts.first ?? ""), name: String(parts.last ?? ""),
            messageID: Hexadecimal.text(id.bytes), dialogRequestID: turn.id, payload: step.json)
    }

    var command: CommandContent {
        get throws(ApusError) { try CommandContent(path: "Action.\(Self.action).ctlVal", json: json) }
    }
}

extension DialogSpeaker {
    init(_ authority: Authority) {
        self.init()
        (account, access) = (authority.account.rawValue, authority.identities.first ?? "")
        (tokenTag, issuedS, expiresS) = (authority.token.tag, authority.token.issuedAt, authority.token.expires)
        identity = authority.identities.last ?? ""
    }
}

extension Authority {
    /// Tokens for certain devices only do not talk.
    init(_ speaker: DialogSpeaker) {
        self.init(
            account: AccountID(unchecked: speaker.account), identities: [speaker.access, speaker.identity],
            token: TokenMark(tag: speaker.tokenTag, issuedAt: speaker.issuedS, expires: speaker.expiresS))
    }
}
