import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("A device's dialog with a fake cluster (VA-7, VA-9, VA-10, VA-12 to VA-16)")
struct VoiceDialogTests {
    /// Answers as a test wants.
    private final class FakeCluster: VoiceCluster {
        private struct State {
            var requests: [any ClientRequestMessage] = []
            var failures: [ApusError] = []
            var version: UInt64 = 1
            var directives: UInt32 = 0
            var reply = "done"
            var isHeld = false
        }

        private let state = Mutex(State())

        var requests: [any ClientRequestMessage] { state.withLock { $0.requests } }
        func events() -> [ClientSendDialogEventRequest] { requests.compactMap { $0 as? ClientSendDialogEventRequest } }
        /// The next requests beside synchronizations fail so.
        func fail(_ errors: ApusError...) { state.withLock { $0.failures = errors } }
        func answer(directives: UInt32 = 0, reply: String = "done") {
            state.withLock { ($0.directives, $0.reply) = (directives, reply) }
        }
        func hold(_ isHeld: Bool) { state.withLock { $0.isHeld = isHeld } }

        func ask<M: ClientRequestMessage>(_ message: M, timeout: Duration) async throws(ApusError) -> M.Reply {
            let isSynchronizing = message is ClientSynchronizeDialogRequest
            let failure = state.withLock { state -> ApusError? in
                state.requests.append(message)
                return isSynchronizing || state.failures.isEmpty ? nil : state.failures.removeFirst()
            }
            if let failure { throw failure }
            while state.withLock({ $0.isHeld }) {
                guard (try? await Task.sleep(for: .milliseconds(5))) != nil else { throw ApusError(.cancelled) }
            }
            let reply = state.withLock { state -> any Sendable in
                state.version += 1
                let version = state.version
                func dialog(_ phase: ClientDialogPhase) -> ClientDialog {
                    .with { ($0.phase, $0.version, $0.listening) = (phase, version, phase == .listening ? "tap" : "") }
                }
                switch message {
                case is ClientSynchronizeDialogRequest:
                    return ClientSynchronizeDialogResponse.with { $0.dialog = dialog(.idle) }
                case is ClientTapDialogRequest: return dialog(.listening)
                case is ClientStopDialogRequest, is ClientSpokenDialogRequest: return dialog(.idle)
                case is ClientSayRequest: return ClientDialogTurn.with { $0.reply = state.reply }
                default: return ClientSendDialogEventResponse.with { $0.directives = state.directives }
                }
            }
            guard let reply = reply as? M.Reply else { throw ApusError(.malformed) }
            return reply
        }
    }

    private final class Seen: Sendable {
        private struct State {
            var phases: [ClientDialogPhase] = []
            var uploads: [(UInt64, UploadState, String)] = []
            var notes: [String] = []
        }
        private let state = Mutex(State())
        var phases: [ClientDialogPhase] { state.withLock { $0.phases } }
        var notes: [String] { state.withLock { $0.notes } }
        func ends(of id: UInt64) -> [UploadState] {
            state.withLock { $0.uploads.filter { $0.0 == id }.map(\.1) }
        }
        func text(of id: UInt64) -> String { state.withLock { $0.uploads.last { $0.0 == id }?.2 ?? "" } }

        var callbacks: VoiceDialog.Callbacks {
            var callbacks = VoiceDialog.Callbacks()
            callbacks.onState = { phase in self.state.withLock { $0.phases.append(phase) } }
            callbacks.onUpload = { id, state, text in self.state.withLock { $0.uploads.append((id, state, text)) } }
            callbacks.onInterrupt = { self.note("interrupted") }
            callbacks.onReply = { turn in self.note("reply \(turn.reply)") }
            callbacks.onDirective = { json in self.note(json) }
            callbacks.onAudioInputError = { text in self.note("audio: \(text)") }
            return callbacks
        }
        private func note(_ text: String) { state.withLock { $0.notes.append(text) } }
    }

    private static let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

    /// A dialog that is connected and synchronized.
    private static func with(
        _ body: (VoiceDialog, FakeCluster, Seen) async throws -> Void
    ) async throws {
        let (cluster, seen) = (FakeCluster(), Seen())
        let dialog = VoiceDialog(
            session: nil, cluster: cluster, device: DeviceID(unchecked: "speaker"), callbacks: seen.callbacks, log: log)
        let running = Task { await dialog.run() }
        defer { running.cancel() }
        dialog.connected()
        try await eventually("the dialog is synchronized") { dialog.phase == .idle }
        try await body(dialog, cluster, seen)
    }

    @Test("Each of the thirteen upload states is provoked by a server (VA-13)")
    func uploadStates() async throws {
        try await Self.with { dialog, cluster, seen in
            func ends(_ id: UInt64) async throws -> [UploadState] {
                try await eventually("the upload ends") { seen.ends(of: id).last?.isEnd ?? false }
                return seen.ends(of: id)
            }
            cluster.answer(directives: 1)
            #expect(try await ends(dialog.sendCustomEvent()) == [.pending, .success])
            cluster.answer(directives: 0)
            #expect(try await ends(dialog.sendCustomEvent()) == [.pending, .successNoContent])
            #expect(try await ends(dialog.say("turn on the lamp")) == [.pending, .success])
            #expect(seen.notes.contains("reply done"))
            for (error, state) in [
                (ApusError(.linkLost), UploadState.notConnected), (ApusError(.malformed), .protocolError),
                (ApusError(.internalFailure), .serverInternalError), (ApusError(.targetUnknown), .refused),
                (ApusError(.overloaded), .throttled), (ApusError(.tokenExpired), .invalidAuth),
                (ApusError(.badParameter, "the payload is no object"), .badRequest),
                (ApusError(.passToServerFailed), .serverOtherError), (ApusError(.answerTimedOut), .serverOtherError),
            ] {
                cluster.fail(error)
                let id = dialog.sendCustomEvent()
                #expect(try await ends(id) == [.pending, state], "\(error)")
                #expect(seen.text(of: id) == error.message)
            }
            cluster.fail(ApusError(.notSynchronized))
            #expect(try await ends(dialog.sendCustomEvent()) == [.pending, .notSynchronized])
            try await eventually("it synchronizes again") {
                cluster.requests.count { $0 is ClientSynchronizeDialogRequest } == 2
            }
            try await eventually("events are sent again") {
                try await ends(dialog.sendCustomEvent()) == [.pending, .successNoContent]
            }
            cluster.hold(true)
            let (first, second) = (dialog.sendCustomEvent(), dialog.sendCustomEvent())
            dialog.cancel(second)
            dialog.cancel(first)
            #expect(seen.ends(of: first) == [.pending, .canceled] && seen.ends(of: second) == [.pending, .canceled])
            cluster.hold(false)
            dialog.disconnected()
            #expect(seen.ends(of: dialog.sendCustomEvent()) == [.notConnected])
        }
    }

    @Test("Uploads before the synchronization of a connection fail, and none is sent (VA-15)")
    func synchronizing() async throws {
        try await Self.with { dialog, cluster, seen in
            cluster.hold(true)
            dialog.connected()
            #expect(dialog.phase == .pending)
            let early = dialog.sendCustomEvent()
            #expect(seen.ends(of: early) == [.notSynchronized] && cluster.events().isEmpty)
            cluster.hold(false)
            try await eventually("the dialog is synchronized") { dialog.phase == .idle }
            let id = dialog.sendCustomEvent()
            try await eventually("the event is sent") { seen.ends(of: id).last?.isEnd ?? false }
            #expect(cluster.events().count == 1)
            #expect(seen.phases == [.pending, .idle, .disconnected, .pending, .idle])
        }
    }

    @Test("A context that is set sends nothing, and the next event carries it (VA-12)")
    func context() async throws {
        try await Self.with { dialog, cluster, seen in
            let context = #"[{"header":{"namespace":"Custom","name":"Custom"},"payload":{"shown":"recipe"}}]"#
            let before = cluster.requests.count
            try dialog.setContext(context)
            #expect(dialog.getContext() == context)
            for text in ["{}", "[1]", #"[{"header":{}}]"#, "[", String(repeating: "x", count: 9_000)] {
                #expect(throws: ApusError.self) { try dialog.setContext(text) }
            }
            try await Task.sleep(for: .milliseconds(50))
            #expect(cluster.requests.count == before && dialog.getContext() == context)
            let id = dialog.sendCustomEvent(payload: #"{"order":"pizza"}"#)
            try await eventually("the event is sent") { seen.ends(of: id).last?.isEnd ?? false }
            let event = try #require(cluster.events().last)
            #expect(event.context == context && event.payload == #"{"order":"pizza"}"# && event.name == "Custom")
            try dialog.setContext("")
            #expect(dialog.getContext().isEmpty)
        }
    }

    @Test("A tap listens, a stop is idle from each phase, and a failed audio source, too (VA-7, VA-9, VA-14)")
    func phases() async throws {
        try await Self.with { dialog, cluster, seen in
            try await dialog.tap()
            #expect(dialog.phase == .listening && seen.notes == ["interrupted"])
            let said = dialog.say("hello")
            try await eventually("it is said") { seen.ends(of: said).last?.isEnd ?? false }
            #expect((cluster.requests.last as? ClientSayRequest)?.heard == "tap")
            try await dialog.stopActivity()
            #expect(dialog.phase == .idle)
            try await dialog.tap()
            dialog.audioInputFailed("the microphone was unplugged")
            #expect(dialog.phase == .idle && seen.notes.last == "audio: the microphone was unplugged")
            try await eventually("the cluster is notified") { cluster.requests.last is ClientStopDialogRequest }
            // A device without a connection stops, too.
            cluster.fail(ApusError(.notAllowed))
            try await dialog.tap(language: "en")
        } catching: { error in
            #expect(error.code == .notAllowed)
        }
    }

    @Test("Each directive is logged (VA-10, VA-14)")
    func directives() async throws {
        try await Self.with { dialog, _, seen in
            let directive = ClientDialogDirective(
                namespace: "Custom", name: "Custom", messageID: "1", dialogRequestID: "2", payload: #"{"a":1}"#)
            dialog.directiveReceived(directive)
            #expect(seen.notes == [directive.json])
            #expect(
                directive.json
                    == #"{"directive":{"header":{"namespace":"Custom","name":"Custom","messageId":"1","#
                    + #""dialogRequestId":"2"},"payload":{"a":1}}}"#)
        }
    }

    /// As ``with(_:)``; the body may throw an error of the cluster.
    private static func with(
        _ body: (VoiceDialog, FakeCluster, Seen) async throws -> Void, catching: (ApusError) -> Void
    ) async throws {
        do {
            try await with(body)
        } catch let error as ApusError {
            catching(error)
        }
    }
}
