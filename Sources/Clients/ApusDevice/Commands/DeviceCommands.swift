public import ApusClient
public import ApusContract
public import ApusCore
import Foundation
public import Logging
import SwiftProtobuf
import Synchronization

/// Takes the commands of a device and carries each out once, one after the other (IV-D5, IV-D11, IV-D15,
/// docs/commands.md).
///
/// A command that comes again, such as after the death of a node, is answered as before and not carried out again. With
/// a ``CommandJournal`` this holds after a restart of the device too: a command that was interrupted is answered with
/// 20103, and not begun a second time.
///
/// Isolation: `Sendable`; ``run()`` is called once, after the callbacks are set.
public final class DeviceCommands: Sendable {
    /// Carries out an action. Receives its value in JSON, such as `1`, and returns the answer in JSON. An error that is
    /// not one of a device is answered as 20103.
    public typealias Action = @Sendable (_ json: String) async throws(ApusError) -> String
    /// Takes raw data, and returns the answer, which is dropped if the sender wants none. An error that is not one of a
    /// device is answered as 21006.
    public typealias Receive = @Sendable (_ data: [UInt8]) async throws(ApusError) -> [UInt8]

    /// Gives the value of a state or a setting, such as `ProReadonly.battery`, in JSON. An error that is not one of a
    /// device is answered as 20103.
    public typealias Read = @Sendable (_ path: String) async throws(ApusError) -> String

    /// As ``Action``, with who has sent it.
    typealias DeliveryAction = @Sendable (_ delivery: ClientCommandDelivery) async throws(ApusError) -> String

    private struct State: Sendable {
        var actions: [String: DeliveryAction] = [:]
        var receive: Receive?
        var read: Read?
        var ledger: CommandLedger
    }

    private struct Work: Sendable {
        let command: ClientCommandDelivery
        let deadline: MonotonicTime
        var id: String { command.id }
        var isAction: Bool { !command.path.isEmpty }
    }

    private let session: ClientSession
    private let journal: CommandJournal?
    private let log: Logger
    private let state: Mutex<State>
    /// Bounded by ``openMax``.
    private let waiting: AsyncStream<Work>
    private let waitingFeed: AsyncStream<Work>.Continuation
    private let unconfirmed: AsyncStream<(id: String, due: MonotonicTime)>
    private let unconfirmedFeed: AsyncStream<(id: String, due: MonotonicTime)>.Continuation

    /// Commands that wait, are carried out, or whose answers wait. One more is answered with 20100.
    public static let openMax = 64
    /// An answer that follows within this time needs no acknowledgement before it.
    private static let acknowledgeDelay = Duration.milliseconds(20)

    /// - Parameter journal: nil: after a restart, the device may carry out a command a second time.
    public init(session: ClientSession, journal: CommandJournal? = nil, log: Logger) {
        (self.session, self.journal, self.log) = (session, journal, log)
        state = Mutex(State(ledger: journal?.ledger ?? CommandLedger()))
        (waiting, waitingFeed) = AsyncStream.makeStream()
        (unconfirmed, unconfirmedFeed) = AsyncStream.makeStream()
    }

    /// Sets what carries out the action `Action.NAME`.
    public func onAction(_ name: String, _ action: @escaping Action) {
        onDelivery(name) { delivery throws(ApusError) in try await action(delivery.json) }
    }

    /// Sets what carries out directives of dialogs, such as `Calls.Start` (VA-10, docs/voice.md). A directive that the
    /// device does not know is answered with 20104, and the dialog says that the device cannot do it.
    public func onDirective(_ directive: @escaping @Sendable (ClientDialogDirective) async throws(ApusError) -> Void) {
        onAction(ClientDialogDirective.action) { json throws(ApusError) in
            try await directive(try ClientDialogDirective(json: json))
            return "{}"
        }
    }

    func onDelivery(_ name: String, _ action: @escaping DeliveryAction) {
        state.withLock { $0.actions["Action.\(name)"] = action }
    }

    /// Sets what takes raw data.
    public func onData(_ receive: @escaping Receive) { state.withLock { $0.receive = receive } }

    /// Sets what gives a value to a client that wants it from the device itself. The value is also reported.
    public func onRead(_ read: @escaping Read) { state.withLock { $0.read = read } }

    /// Works until the task is cancelled or the session ends. It returns when the command that is being carried out has
    /// ended, and its end is in the journal.
    ///
    /// - Throws: 12004 if the session is not a device's, 10006 at the end.
    public func run() async throws(ApusError) {
        let commands = session.events(of: "commands/own", as: ClientCommandDelivery.self)
        let error = await withDiscardingTaskGroup { group -> ApusError in
            await recover(&group)
            group.addTask { await self.carryOutAll() }
            group.addTask { for await (id, due) in self.unconfirmed { await self.acknowledge(id, at: due) } }
            var failure = ApusError(.cancelled)
            do {
                for try await event in commands { received(event.message, &group) }
            } catch {
                failure = error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
            waitingFeed.finish()
            unconfirmedFeed.finish()
            group.cancelAll()
            return failure
        }
        throw error
    }

    /// Sends the answers that the cluster may not have, and answers what a restart has interrupted.
    private func recover(_ group: inout DiscardingTaskGroup) async {
        for id in state.withLock({ $0.ledger.interrupted }) {
            log.warning("A command was interrupted", metadata: ["apus.command": "\(id)"])
            let error = ApusError(.actionFailed, "the device restarted while it carried out the command")
            await note(.ended(id, .init(error, isAction: true)))
        }
        for (id, answer) in state.withLock({ $0.ledger.answers }) {
            group.addTask { await self.send(answer, to: id) }
        }
    }

    private func received(_ command: ClientCommandDelivery, _ group: inout DiscardingTaskGroup) {
        let id = command.id
        guard id.utf8.count == 32 else { return }
        let deadline = MonotonicTime.now() + .milliseconds(Int64(command.ttlMs))
        let (known, isFull) = state.withLock { state in
            let (known, isFull) = (state.ledger[id], state.ledger.openCount >= Self.openMax)
            if known == nil, !isFull { state.ledger.wait(id) }
            return (known, isFull)
        }
        switch known {
        case .none where isFull:
            group.addTask { await self.send(.init(ApusError(.deviceBusy), isAction: !command.path.isEmpty), to: id) }
        case .none:
            waitingFeed.yield(Work(command: command, deadline: deadline))
            // Without an answer, the acknowledgement says that the command is begun.
            guard !command.noAnswer else { return }
            if command.acknowledge {
                group.addTask { await self.acknowledge(id) }
            } else {
                unconfirmedFeed.yield((id, .now() + Self.acknowledgeDelay))
            }
        case .waiting where command.noAnswer: break
        case .waiting, .begun, .done: group.addTask { await self.acknowledge(id) }
        case .ended: break  // Its answer is sent until the cluster has it.
        }
    }

    // MARK: - Carrying out

    private func carryOutAll() async {
        await withDiscardingTaskGroup { group in
            for await work in waiting {
                guard !Task.isCancelled else { break }
                let answer = await carryOut(work, &group)
                if let answer { group.addTask { await self.send(answer, to: work.id) } }
            }
            group.cancelAll()
        }
    }

    /// - Returns: what is to be sent, if anything.
    private func carryOut(_ work: Work, _ group: inout DiscardingTaskGroup) async -> CommandLedger.Answer? {
        let isAction = work.isAction
        guard MonotonicTime.now() < work.deadline else {
            return .init(
                ApusError(.peerTimedOut, "the time of the command was over when it came to it"), isAction: isAction)
        }
        let path = work.command.path
        let (action, receive) = state.withLock { state in
            (state.actions[path] ?? reading(path, state.read), state.receive)
        }
        guard isAction ? action != nil : receive != nil else {
            return .init(ApusError(isAction ? .actionUnknown : .callbackUnknown), isAction: isAction)
        }
        if let error = await note(.begun(work.id)) {
            return .init(
                ApusError(.actionFailed, "the device cannot write its journal: \(error.code)"), isAction: isAction)
        }
        if work.command.noAnswer { group.addTask { await self.acknowledge(work.id) } }
        var answer = CommandLedger.Answer(code: 0, message: "", content: [], isAction: isAction)
        do throws(ApusError) {
            if let action, isAction { answer.content = Array(try await action(work.command).utf8) }
            if let receive, !isAction { answer.content = try await receive(Array(work.command.data)) }
            guard answer.content.count <= ClientSession.commandByteCountMax else {
                throw ApusError(.messageTooLarge, "the answer of the device is too long")
            }
        } catch {
            let isOwn = (20_000...21_999).contains(error.code.number) || (24_000...24_999).contains(error.code.number)
            let code = isOwn ? error.code : isAction ? .actionFailed : .passToDeviceFailed
            answer = .init(ApusError(code, error.message), isAction: isAction)
        }
        guard !work.command.noAnswer || answer.code != 0 else {
            // The cluster knows already: a journal without this end would report an interruption.
            await note(.finished(work.id), isSynced: true)
            return nil
        }
        await note(.ended(work.id, answer))
        return answer
    }

    /// Gives the value at a path that is not one of an action, and reports it first.
    private func reading(_ path: String, _ read: Read?) -> DeliveryAction? {
        let parts = path.split(separator: ".")
        guard let read, parts.count == 2, let name = ["ProReadonly": "stVal", "ProWritable": "setVal"][parts[0]] else {
            return nil
        }
        return { [session] _ throws(ApusError) in
            let json = try await read(path)
            try await session.untilAnswered { () throws(ApusError) in
                try await session.reportProperty(path: "\(path).\(name)", json: json)
            }
            return json
        }
    }

    /// Notes what became of a command, in the journal first.
    ///
    /// - Parameter isSynced: go on once it is on the disk; nil: unless it says that the cluster has an answer. Without
    ///   that, the answer is sent once more, which changes nothing.
    /// - Returns: why the journal cannot be written.
    @discardableResult
    private func note(_ entry: CommandJournalEntry, isSynced: Bool? = nil) async -> ApusError? {
        if let journal {
            let isFinished = if case .finished = entry { true } else { false }
            let isSynced = isSynced ?? !isFinished
            do throws(ApusError) {
                try await BlockingWork.run { () throws(ApusError) in try journal.append(entry, isSynced: isSynced) }
            } catch {
                log.error("The journal of commands cannot be written", metadata: ["apus.error": "\(error)"])
                if case .begun = entry { return error }
            }
        }
        state.withLock { $0.ledger.apply(entry) }
        return nil
    }

    // MARK: - Sending

    private func acknowledge(_ id: String, at due: MonotonicTime) async {
        guard (try? await Task.sleep(for: max(.zero, due - .now()))) != nil else { return }
        switch state.withLock({ $0.ledger[id] }) {
        case .waiting, .begun: await acknowledge(id)
        default: break
        }
    }

    private func acknowledge(_ id: String) async {
        // If it is lost, the cluster sends the command again.
        _ = try? await session.ask(ClientAcknowledgeCommandsRequest.with { $0.ids = [id] })
    }

    /// Sends an answer until the cluster has it. Instead of one that is refused, such as for its JSON, it sends a
    /// failure.
    private func send(_ answer: CommandLedger.Answer, to id: String) async {
        do throws(ApusError) {
            do throws(ApusError) {
                try await request(answer, id)
            } catch {
                guard error.code != .cancelled else { return }
                log.error("An answer was refused", metadata: ["apus.command": "\(id)", "apus.error": "\(error)"])
                let refused = ApusError(.actionFailed, "the cluster refused the device's answer: \(error.message)")
                try await request(.init(refused, isAction: answer.isAction), id)
            }
        } catch {
            // Nothing more can be sent: the session has ended. After a restart the journal has the answer.
            return
        }
        if case .ended = state.withLock({ $0.ledger[id] }) {
            await note(.finished(id))
        } else {
            state.withLock { $0.ledger.forget(id) }
        }
    }

    private func request(_ answer: CommandLedger.Answer, _ id: String) async throws(ApusError) {
        let request = ClientAnswerCommandRequest.with {
            ($0.id, $0.code, $0.message) = (id, answer.code, answer.message)
            if answer.isAction {
                $0.json = String(decoding: answer.content, as: UTF8.self)
            } else {
                $0.data = Data(answer.content)
            }
        }
        _ = try await session.untilAnswered { [session] () throws(ApusError) in try await session.ask(request) }
    }
}
