import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import ApusTimers
import SwiftProtobuf
import Synchronization

// Devices say what they do after each connection, before they send events (VA-15).

extension DialogService {
    /// Compares what the dialog and the timers of a device do with what the device does. What only the cluster does
    /// with the dialog has ended when the device was away.
    ///
    /// - Throws: 21031 for a state or a context that is not valid, 10002 for a context that is too long; otherwise as
    ///   ``access(to:_:)``.
    func synchronize(
        _ request: ClientSynchronizeDialogRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientSynchronizeDialogResponse {
        guard let device = call.session.device, let connection = call.connection else {
            throw ApusError(.notAllowed, "a device synchronizes its dialog, over its connection")
        }
        guard let phase = request.state.isEmpty ? .idle : ClientDialogPhase(named: request.state) else {
            throw ApusError(.badParameter, "the state is not one of a dialog")
        }
        guard request.alerts.count <= DialogConfiguration.alertsMax else {
            throw ApusError(.badParameter, "a device has at most \(DialogConfiguration.alertsMax) alerts")
        }
        _ = try SkillEvent.context(request.context)
        let account = call.session.account
        let since = try await access(to: device, call.session).dataSince
        let look = DialogLook.with { $0.dataSinceMs = since }
        var state = try await ref(device).ask(look, timeout: try call.timeLeft())
        if Self.hasEnded(state, at: phase) {
            let stop = DialogStop.with { $0.dataSinceMs = since }
            state = try await ref(device).ask(stop, timeout: try call.timeLeft())
        }
        let all = try await timers.list(of: device, for: account, timeout: try call.timeLeft())
        let ringing = all.filter { $0.status == .ringing }.map(\.id)
        synchronized.insert(connection)
        return .with { [state] in
            $0.dialog = ClientDialog(state, device)
            $0.endedAlerts = request.alerts.filter { !ringing.contains($0) }
            $0.ringingAlerts = ringing.filter { !request.alerts.contains($0) }
        }
    }

    /// Whether the device does not do any more what the dialog expects of it. A sentence that was typed expects
    /// nothing.
    private static func hasEnded(_ state: DialogState, at phase: ClientDialogPhase) -> Bool {
        switch state.phase {
        case .listening: phase != .listening
        case .speaking: phase != .speaking && !(state.turns.last?.heard.isEmpty ?? true)
        default: false
        }
    }
}

/// The connections of devices that have synchronized their dialogs. A connection is forgotten when it is closed.
///
/// Isolation: any thread. The `Mutex` guards the table.
final class SynchronizedConnections: Sendable {
    private struct Entry {
        weak var connection: (any ClientConnection)?
    }

    private struct State {
        var entries: [ObjectIdentifier: Entry] = [:]
        var sweepAt = 64
    }

    private let state = Mutex(State())

    func insert(_ connection: any ClientConnection) {
        state.withLock { state in
            state.entries[ObjectIdentifier(connection)] = Entry(connection: connection)
            guard state.entries.count >= state.sweepAt else { return }
            state.entries = state.entries.filter { $0.value.connection.map { !$0.isClosed } ?? false }
            state.sweepAt = max(64, state.entries.count * 2)
        }
    }

    func contains(_ connection: any ClientConnection) -> Bool {
        // Another connection may have the address of one that is gone.
        state.withLock { $0.entries[ObjectIdentifier(connection)]?.connection === connection }
    }
}
