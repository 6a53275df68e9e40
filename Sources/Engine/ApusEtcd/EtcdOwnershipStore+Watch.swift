import ApusCore
import ApusStorage
import Logging
import Synchronization

/// The shell of ``EtcdWatchStateMachine``. The watch has a connection of its own, so that a swap without an answer does
/// not end it.
extension EtcdOwnershipStore {
    package func watch(_ changed: @escaping @Sendable (UInt64) -> Void) async {
        let watch = EtcdWatch(calls.configuration)
        var action = watch.handle(.starting)
        // The endpoint's position; it advances with each watch that ended.
        var position = 0
        while !Task.isCancelled {
            switch action {
            case .read:
                action = await readBefore(watch, changed)
            case .watch(let revision):
                let failure = await follow(watch, from: revision, at: position, changed)
                guard !Task.isCancelled else { return }
                action = watch.handle(.ended)
                position += 1
                if let failure { calls.metrics.failed(failure.kind) }
            case .wait(let delay, let reason):
                calls.metrics.restarted(reason)
                log.debug(
                    "The watch of the ownership store is opened again", metadata: [LogKey.reason: "\(reason.rawValue)"])
                try? await Task.sleep(for: delay)
                action = watch.handle(.starting)
            case .none, .report, .ask, .close:
                action = watch.handle(.starting)
            }
        }
    }

    /// Reads the keys and reports what is new. Returns the next action.
    private func readBefore(
        _ watch: EtcdWatch, _ changed: @Sendable (UInt64) -> Void
    ) async -> EtcdWatchStateMachine.Action {
        do throws(ApusError) {
            let found = try await contents(.revision)
            let value = Int64(clamping: found.value?.revision ?? 0)
            if case .report(let revision) = watch.handle(.read(at: found.revision, value: value)) {
                changed(UInt64(clamping: revision))
            }
            return watch.handle(.starting)
        } catch {
            // Another store, or none: the caller's next read shows it.
            if error.code == .stateForeign { changed(0) }
            return watch.handle(.ended)
        }
    }

    /// Opens a watch and follows it to its end. Returns why it ended; nil if the machine closed it.
    private func follow(
        _ watch: EtcdWatch, from revision: Int64, at position: Int, _ changed: @escaping @Sendable (UInt64) -> Void
    ) async -> EtcdFailure? {
        let connection: EtcdConnection
        do throws(EtcdFailure) {
            connection = try await calls.open(
                calls.endpoint(at: position), until: MonotonicTime.now() + calls.configuration.timeout)
        } catch {
            return error
        }
        defer { connection.close() }
        let failure = await withTaskGroup(of: EtcdFailure?.self) { group in
            group.addTask { await self.receive(watch, over: connection, from: revision, changed) }
            group.addTask { await self.ask(watch, over: connection, changed) }
            defer { group.cancelAll() }
            return await group.next() ?? nil
        }
        return watch.isClosing ? nil : failure
    }

    /// Takes what etcd sends. Returns why that ended; nil if the machine closed the watch, or etcd ended it.
    private func receive(
        _ watch: EtcdWatch, over connection: EtcdConnection, from revision: Int64, _ changed: @Sendable (UInt64) -> Void
    ) async -> EtcdFailure? {
        do throws(EtcdFailure) {
            try await connection.watch(calls.keys.watch(from: revision)) { response in
                perform(watch.handle(.response(EtcdWatchStateMachine.Response(response))), changed)
            }
            return nil
        } catch {
            return error
        }
    }

    /// Reads the keys at each interval, over the same connection. Returns why a read failed; nil if the machine closed
    /// the watch. A read without an answer is only counted, by the machine.
    private func ask(
        _ watch: EtcdWatch, over connection: EtcdConnection, _ changed: @Sendable (UInt64) -> Void
    ) async -> EtcdFailure? {
        let interval = calls.configuration.pollInterval
        var next = MonotonicTime.now() + interval
        while (try? await Task.sleep(for: max(next - .now(), .zero))) != nil {
            guard watch.handle(.interval) == .ask else { return nil }
            next = .now() + interval
            do throws(EtcdFailure) {
                let answer = try await connection.unary(
                    EtcdMethods.transaction, calls.keys.read(keysOnly: true), as: EtcdTxnResponse.self, until: next)
                let newest = answer.responses.flatMap(\.responseRange.kvs).map(\.modRevision).max() ?? 0
                guard perform(watch.handle(.answered(at: answer.header.revision, newest: newest)), changed) else {
                    return nil
                }
            } catch {
                guard error.kind == .timeout else { return error }
            }
        }
        return nil
    }

    /// Carries out an action of an open watch. Returns false if the watch is to be closed.
    private func perform(_ action: EtcdWatchStateMachine.Action, _ changed: @Sendable (UInt64) -> Void) -> Bool {
        switch action {
        case .report(let revision): changed(UInt64(clamping: revision))
        case .close: return false
        case .none, .read, .watch, .ask, .wait: break
        }
        return true
    }
}

/// The state of one watch, shared by the tasks that send and receive.
private final class EtcdWatch: Sendable {
    private struct State: Sendable {
        var machine: EtcdWatchStateMachine
        var isClosing = false
    }

    private let state: Mutex<State>

    init(_ configuration: EtcdConfiguration) {
        let machine = EtcdWatchStateMachine(
            retryDelayMin: configuration.retryDelayMin, retryDelayMax: configuration.retryDelayMax,
            seed: .random(in: 0...(.max)))
        state = Mutex(State(machine: machine))
    }

    /// True after the machine decided to close the open watch.
    var isClosing: Bool { state.withLock { $0.isClosing } }

    func handle(_ input: EtcdWatchStateMachine.Input) -> EtcdWatchStateMachine.Action {
        state.withLock { state in
            let action = state.machine.handle(input)
            switch action {
            case .close: state.isClosing = true
            case .watch, .read: state.isClosing = false
            case .none, .report, .ask, .wait: break
            }
            return action
        }
    }
}

extension EtcdWatchStateMachine.Response {
    init(_ response: EtcdWatchResponse) {
        self.init()
        revision = response.header.revision
        isCreated = response.created
        isCanceled = response.canceled
        compactRevision = response.compactRevision
        newestChange = response.events.map(\.kv.modRevision).max() ?? 0
    }
}
