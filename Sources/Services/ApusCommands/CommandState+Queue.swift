package import ApusCore
import ApusWire
package import Foundation
import SwiftProtobuf

/// The commands of a device (IV-D5, IV-D11, IV-D15).
///
/// **States.** A command is queued when it is durable, sent when it was given to the node of a connection of the
/// device, acknowledged when the device has it, and answered or failed when the device has ended it. A command whose
/// time to live ends before it was ever sent is expired: it is never carried out. One that was sent and never
/// acknowledged has failed with 20001, and one without an answer with 21002. Both may have been carried out, and an
/// answer that comes late replaces the failure.
///
/// **Delivery.** A command is sent to all connections of the device until it is acknowledged, so a device can receive
/// it more than once, and tells repetitions by its id. The device's ``CommandOrder`` decides when the next one is sent.
///
/// **Rights.** A command is sent only if the right of its sender was checked lately: see ``apply(_:_:at:_:)``.
///
/// **Ends.** The newest commands that have ended are kept without their contents, so a client that lost an answer can
/// ask for it.
///
/// Pure value. Times are Unix milliseconds of the cluster's clock.
extension CommandState {
    /// The longest content and the longest answer (MAX_DATA_SIZE of IV-D11).
    package static let contentByteCountMax = 30_000
    /// The longest text of a failure, in bytes.
    package static let messageByteCountMax = 256
    /// The bytes of the answers of ended commands together. The newest answer is kept in any case.
    package static let endedByteCountMax = 16 << 10
    /// Connections of a device. It has one, or two while it changes nodes.
    package static let listenersMax = 4
    /// Requests that wait for one command. A client that repeats its request at another node adds one.
    package static let waitersMax = 2
    /// What a command counts beside its content, names and texts: numbers, and the names of the nodes that wait.
    package static let entryByteCount = 320
    package static let resendAfterMax: Int64 = 60_000

    /// What a change causes.
    package struct Effects: Sendable, Equatable {
        /// To send to a connection of the device.
        package var deliveries: [(listener: CommandListener, entry: CommandEntry)] = []
        /// Nodes whose requests wait for a status that is reached.
        package var reached: [(node: String, entry: CommandEntry)] = []
        /// Commands wait for ``CommandState/apply(_:_:at:_:)`` with the accounts that may use the device now.
        package var needsRights = false

        package init() {}

        package static func == (left: Self, right: Self) -> Bool {
            left.deliveries.elementsEqual(right.deliveries, by: ==) && left.reached.elementsEqual(right.reached, by: ==)
                && left.needsRights == right.needsRights
        }
    }

    // MARK: Clients

    /// A client sends a command, or repeats its request. Its right to do so was checked just now.
    ///
    /// - Returns: the command as it is now.
    /// - Throws: 21008 if the content is too long, 21000 if another command has the id, 10007 if too many are open.
    package mutating func submit(
        _ message: CommandSubmit, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) throws(ApusError) -> CommandEntry {
        guard message.content.count <= Self.contentByteCountMax else {
            throw ApusError(.messageTooLarge, "a command has at most \(Self.contentByteCountMax) bytes")
        }
        if let known = entry(message.id) {
            guard known.isSame(as: message) else {
                throw ApusError(.duplicateMessage, "another command has this id")
            }
            return wait(message.waiter, for: message.id) ?? known
        }
        let new = CommandEntry.with {
            ($0.id, $0.path, $0.content) = (message.id, message.path, message.content)
            ($0.noAnswer, $0.sender, $0.digest, $0.status) = (
                message.noAnswer, message.sender, message.digest, .queued
            )
            ($0.createdMs, $0.changedMs, $0.expiresMs) = (now, now, now + message.ttlMs)
            if message.waiter.until > .queued { $0.waiters = [message.waiter] }
            if message.hasOrigin { $0.origin = message.origin }
            ($0.account, $0.rightMs) = (message.account, now)
            if message.hasToken { $0.token = message.token }
        }
        guard open.count < configuration.openMax,
            open.reduce(new.byteCount, { $0 + $1.byteCount }) <= configuration.openByteCountMax,
            !new.isRead || open.count(where: \.isRead) < configuration.readsMax
        else { throw ApusError(.overloaded, "too many commands wait for the device") }
        open.append(new)
        advance(configuration, at: now, &effects)
        return entry(message.id) ?? open[open.endIndex - 1]
    }

    /// A node's request waits for a status of the command.
    ///
    /// - Returns: the command as it is now; nil if it is unknown, such as long after its end.
    package mutating func wait(_ waiter: CommandWaiter, for id: Data) -> CommandEntry? {
        guard let index = open.firstIndex(where: { $0.id == id }) else { return entry(id) }
        if waiter.until > .queued, !open[index].waiters.contains(waiter) {
            open[index].waiters = open[index].waiters.suffix(Self.waitersMax - 1) + [waiter]
        }
        return open[index]
    }

    /// A client ends a command that was not sent.
    ///
    /// - Returns: the command, also if it was cancelled before.
    /// - Throws: 8002 if there is none, 10030 if it was sent or has ended.
    package mutating func cancel(
        _ id: Data, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) throws(ApusError) -> CommandEntry {
        advance(configuration, at: now, &effects)
        guard let found = entry(id) else { throw ApusError(.targetUnknown, "there is no such command") }
        if found.code == ErrorCode.cancelled.number { return found }
        guard found.status == .queued, let index = open.firstIndex(where: { $0.id == id }) else {
            throw ApusError(.versionConflict, "the command was sent already")
        }
        return end(index, .failed, ApusError(.cancelled, "the command was cancelled"), at: now, &effects)
    }

    package func entry(_ id: Data) -> CommandEntry? {
        open.first { $0.id == id } ?? ended.last { $0.id == id }
    }

    // MARK: The device

    /// A connection of the device takes commands from now on. It receives what was sent and has not ended: a device
    /// that has restarted may not know what it had acknowledged. What waits for the check of a right follows it.
    package mutating func listen(
        _ listener: CommandListener, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) {
        if !listeners.contains(listener) { listeners = listeners.suffix(Self.listenersMax - 1) + [listener] }
        var isChecking = false
        for index in open.indices {
            // What was asked of an earlier owner may be lost with it.
            open[index].checkMs = 0
            guard open[index].isRepeated(at: now) else { continue }
            if isChecking {
                askForRights(index, configuration, at: now, &effects)
            } else if isChecked(index, configuration, at: now, &effects) {
                effects.deliveries.append((listener, open[index]))
            } else {
                isChecking = true
            }
        }
        advance(configuration, at: now, &effects)
    }

    package mutating func leave(_ listener: CommandListener) { listeners.removeAll { $0 == listener } }

    /// The device has these commands. What is unknown has ended, and has no effect.
    package mutating func acknowledge(
        _ ids: [Data], _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) {
        for id in ids {
            guard let index = open.firstIndex(where: { $0.id == id }), open[index].status < .acknowledged else {
                continue
            }
            if open[index].noAnswer {
                _ = end(index, .acknowledged, nil, at: now, &effects)
            } else {
                set(index, .acknowledged, at: now, &effects)
            }
        }
        advance(configuration, at: now, &effects)
    }

    /// The device has ended a command.
    ///
    /// - Throws: 21008 if the answer is too long. Then the command has not ended.
    package mutating func answer(
        _ message: CommandAnswer, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) throws(ApusError) {
        guard message.answer.count <= Self.contentByteCountMax else {
            throw ApusError(.messageTooLarge, "an answer has at most \(Self.contentByteCountMax) bytes")
        }
        let failure = message.code == 0 ? nil : ApusError(ErrorCode(number: message.code), message.message)
        let status = failure == nil ? CommandStatus.answered : .failed
        if let index = open.firstIndex(where: { $0.id == message.id }) {
            _ = end(index, status, failure, answer: message.answer, at: now, &effects)
        } else if let index = ended.lastIndex(where: { $0.id == message.id }),
            ended[index].isAssumed || (ended[index].noAnswer && failure != nil && ended[index].status == .acknowledged)
        {
            ended[index].finish(status, failure, answer: message.answer, at: now)
            trim()
        }
        advance(configuration, at: now, &effects)
    }

    // MARK: Time and delivery

    /// Ends what is over, and sends what may be sent now.
    package mutating func advance(_ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects) {
        var index = open.startIndex
        while index < open.endIndex {
            let entry = open[index]
            guard entry.isOver(configuration, at: now) else {
                index += 1
                continue
            }
            switch entry.status {
            case .queued:
                _ = end(
                    index, .expired, ApusError(.targetOffline, "the device was not reached in time"), at: now, &effects)
            case .sent:
                _ = end(
                    index, .failed, ApusError(.peerTimedOut, Self.unacknowledged), at: now, &effects, isAssumed: true)
            default: _ = end(index, .failed, ApusError(.answerTimedOut), at: now, &effects, isAssumed: true)
            }
        }
        // Reads go first, so that they never make the cluster forget a command.
        while ended.count > configuration.endedMax { ended.remove(at: ended.firstIndex(where: \.isRead) ?? 0) }
        ended.removeAll { now >= $0.changedMs + Int64(configuration.endedTime.milliseconds) }
        guard !listeners.isEmpty else { return }
        var sentCount = open.count { $0.status == .sent }
        // What waits for a check keeps its place: later commands wait with it.
        var isChecking = false
        for index in open.indices {
            guard open[index].checkMs == 0 else {
                askForRights(index, configuration, at: now, &effects)
                isChecking = true
                continue
            }
            switch open[index].status {
            case .queued where sentCount < configuration.sentMax && !isHeld(index) && !isChecking: break
            case .sent where now >= open[index].resendMs(configuration): break
            default: continue
            }
            guard isChecked(index, configuration, at: now, &effects) else {
                isChecking = true
                continue
            }
            if open[index].status == .queued {
                sentCount += 1
                set(index, .sent, at: now, &effects)
            }
            open[index].sentMs = now
            open[index].deliveries += 1
            for listener in listeners { effects.deliveries.append((listener, open[index])) }
        }
    }

    private static let unacknowledged = "the device did not acknowledge the command, and may have carried it out"

    /// True if an earlier command has to come further first.
    private func isHeld(_ index: Int) -> Bool {
        switch order {
        case .afterAnswer: index > open.startIndex
        case .afterAcknowledgement: open[..<index].contains { $0.status < .acknowledged }
        default: false
        }
    }

    /// When ``advance(_:at:_:)`` has to be called next; nil if there are no commands.
    package func nextMs(_ configuration: CommandConfiguration) -> Int64? {
        let open = open.map { entry in
            let end = entry.endMs(configuration)
            guard !listeners.isEmpty else { return end }
            if entry.checkMs > 0 { return min(end, entry.checkAgainMs(configuration)) }
            return entry.status == .sent ? min(end, entry.resendMs(configuration)) : end
        }
        return open.min() ?? ended.last.map { $0.changedMs + Int64(configuration.endedTime.milliseconds) }
    }

    private mutating func set(_ index: Int, _ status: CommandStatus, at now: Int64, _ effects: inout Effects) {
        (open[index].status, open[index].changedMs) = (status, now)
        let entry = open[index]
        open[index].waiters.removeAll { $0.until <= status }
        effects.note(entry)
    }

    mutating func end(
        _ index: Int, _ status: CommandStatus, _ failure: ApusError?, answer: Data = Data(), at now: Int64,
        _ effects: inout Effects, isAssumed: Bool = false
    ) -> CommandEntry {
        var entry = open.remove(at: index)
        entry.finish(status, failure, answer: answer, at: now)
        entry.isAssumed = isAssumed
        effects.note(entry)
        // Nobody sends it again.
        (entry.waiters, entry.rightMs, entry.checkMs) = ([], 0, 0)
        ended.append(entry)
        trim()
        return entry
    }

    /// Drops the oldest answers.
    private mutating func trim() {
        var byteCount = 0
        for index in ended.indices.reversed() {
            byteCount += ended[index].answer.count
            if byteCount > Self.endedByteCountMax, index < ended.endIndex - 1, !ended[index].answer.isEmpty {
                byteCount -= ended[index].answer.count
                ended[index].answer = Data()
            }
        }
    }
}

extension CommandState.Effects {
    /// Notes who waits for what the command has reached.
    fileprivate mutating func note(_ entry: CommandEntry) {
        guard !entry.waiters.isEmpty else { return }
        var plain = entry
        (plain.content, plain.waiters) = (Data(), [])
        for waiter in entry.waiters where entry.hasReached(waiter.until) { reached.append((waiter.node, plain)) }
    }
}

extension CommandEntry {
    /// True once nothing follows but what the device answers late.
    package var hasEnded: Bool {
        switch status {
        case .answered, .failed, .expired: true
        case .acknowledged: noAnswer
        default: false
        }
    }

    /// The value of a leaf is wanted, and nothing is to be done.
    package var isRead: Bool { CommandContent.isRead(path) }

    /// What it takes of the state, at most.
    package var byteCount: Int {
        CommandState.entryByteCount + path.utf8.count + content.count + sender.utf8.count + message.utf8.count
            + answer.count + origin.user.utf8.count + account.utf8.count
    }

    package func hasReached(_ wanted: CommandStatus) -> Bool { hasEnded || status >= wanted }

    fileprivate func endMs(_ configuration: CommandConfiguration) -> Int64 {
        status == .acknowledged ? changedMs + Int64(configuration.answerTime.milliseconds) : expiresMs
    }

    fileprivate func isOver(_ configuration: CommandConfiguration, at now: Int64) -> Bool {
        now >= endMs(configuration)
    }

    fileprivate func resendMs(_ configuration: CommandConfiguration) -> Int64 {
        let first = max(1, Int64(configuration.resendAfter.milliseconds))
        return sentMs + min(first << min(Int64(deliveries) - 1, 8), max(first, CommandState.resendAfterMax))
    }

    fileprivate mutating func finish(_ status: CommandStatus, _ failure: ApusError?, answer: Data, at now: Int64) {
        (self.status, changedMs, isAssumed, content) = (status, now, false, Data())
        let text = (failure?.message ?? "").utf8.prefix(CommandState.messageByteCountMax)
        (code, message) = (failure?.code.number ?? 0, String(decoding: text, as: UTF8.self))
        self.answer = answer
    }
}

extension CommandStatus: Comparable {
    package static func < (left: Self, right: Self) -> Bool { left.rawValue < right.rawValue }
}

extension CommandEntry {
    /// True if the message is a repetition of what this is of, and not another command with its id. An access id is
    /// unique in its account only. Nodes of earlier releases send no account.
    func isSame(as message: CommandSubmit) -> Bool {
        let isOfAccount = account.isEmpty || message.account.isEmpty || account == message.account
        return isOfAccount && sender == message.sender && digest == message.digest
    }
}

extension CommandSubmit {
    /// Differs for commands that differ. No protection against a client that wants two to be alike: it would confuse
    /// only itself.
    var digest: UInt64 {
        StableHash.hash(content, seed: StableHash.hash(path, seed: noAnswer ? 1 : 0))
    }
}
