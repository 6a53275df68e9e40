public import ApusContract
public import ApusCore
import Foundation
public import Logging
import SwiftProtobuf
import Synchronization

/// Where a device sends its requests: the cluster, or a fake one in tests.
package protocol VoiceCluster: Sendable {
    func ask<M: ClientRequestMessage>(_ message: M, timeout: Duration) async throws(ApusError) -> M.Reply
}

extension ClientSession: VoiceCluster {}

/// The dialog of a device with a person (VA-6 to VA-15, docs/voice.md): what it does, its sentences and events, and
/// what became of them.
///
///     let dialog = VoiceDialog(session: session, device: device, callbacks: callbacks, log: log)
///     async let running: Void = dialog.run()
///     try await dialog.tap()
///     dialog.say("turn on the hall lamp")
///
/// It needs no global initialization (VA-16).
///
/// Isolation: `Sendable`. ``run()`` is called once. The callbacks are called from any task, and must not block.
public final class VoiceDialog: Sendable {
    /// What a device is notified of.
    public struct Callbacks: Sendable {
        /// Each phase that the dialog enters, in order.
        public var onState: @Sendable (ClientDialogPhase) -> Void = { _ in }
        /// What became of a sentence or an event, with a text for people (VA-13).
        public var onUpload: @Sendable (UploadStateMachine.ID, UploadState, _ message: String) -> Void = { _, _, _ in }
        /// A turn of the dialog: its reply is to be given. Then the device calls ``VoiceDialog/spoken(_:)``.
        public var onReply: @Sendable (ClientDialogTurn) -> Void = { _ in }
        /// The reply that is being given ends now: its sound is dropped (VA-7).
        public var onInterrupt: @Sendable () -> Void = {}
        /// Each directive, as JSON, for a log (VA-14).
        public var onDirective: @Sendable (_ json: String) -> Void = { _ in }
        /// The audio source has failed, with a text for people (VA-14).
        public var onAudioInputError: @Sendable (_ message: String) -> Void = { _ in }
        /// After each connection: the numbers of the timers that do not ring any more, and of those that ring.
        public var onAlerts: @Sendable (_ ended: [UInt32], _ ringing: [UInt32]) -> Void = { _, _ in }
        /// The numbers of the timers that ring at the device.
        public var alerts: @Sendable () -> [UInt32] = { [] }

        public init() {}
    }

    private enum Upload: Sendable {
        case sentence(ClientSayRequest)
        case event(ClientSendDialogEventRequest)
    }

    private enum Work: Sendable {
        case synchronize(generation: Int)
        case send(UploadStateMachine.ID)
        case stop
    }

    private struct State: Sendable {
        var machine = VoiceStateMachine()
        var uploads = UploadStateMachine()
        var contents: [UploadStateMachine.ID: Upload] = [:]
        var lastID: UploadStateMachine.ID = 0
        var context = ""
        /// The listening that the device is in; empty: none.
        var listening = ""
        /// Of the connection.
        var generation = 0
    }

    private let session: ClientSession?
    private let cluster: any VoiceCluster
    private let device: DeviceID
    private let callbacks: Callbacks
    private let log: Logger
    private let state = Mutex(State())
    private let work: AsyncStream<Work>
    /// Bounded by the uploads that wait, and one synchronization of each connection.
    private let feed: AsyncStream<Work>.Continuation

    /// The longest context, in bytes.
    public static let contextByteCountMax = 8 << 10
    private static let sentenceTimeout = Duration.seconds(20)
    private static let attemptsMax = 3
    private static let pauses = (first: Duration.milliseconds(100), longest: Duration.seconds(5))

    public convenience init(session: ClientSession, device: DeviceID, callbacks: Callbacks, log: Logger) {
        self.init(session: session, cluster: session, device: device, callbacks: callbacks, log: log)
    }

    package init(
        session: ClientSession?, cluster: any VoiceCluster, device: DeviceID, callbacks: Callbacks, log: Logger
    ) {
        (self.session, self.cluster, self.device) = (session, cluster, device)
        (self.callbacks, self.log) = (callbacks, log)
        (work, feed) = AsyncStream.makeStream()
    }

    /// Follows the dialog, and sends what is to be sent, until the task is cancelled.
    public func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask { for await item in self.work { await self.perform(item) } }
            guard let session else { return }
            group.addTask {
                let connections = session.newConnections()
                if await session.currentEndpoint() != nil { self.connected() }
                for await _ in connections { self.connected() }
            }
            group.addTask {
                for await state in session.linkStates() where state != .online { self.disconnected() }
            }
            group.addTask { await self.follow(session) }
        }
        feed.finish()
        disconnected()
    }

    private func follow(_ session: ClientSession) async {
        var pauses = Backoff(first: Self.pauses.first, longest: Self.pauses.longest)
        repeat {
            do {
                for try await event in session.dialogChanges(of: device) { changed(event.message) }
            } catch {
                log.debug("The changes of a dialog are not heard", metadata: Logger.facts(of: error))
            }
        } while (try? await Task.sleep(for: pauses.next())) != nil
    }

    // MARK: - The dialog

    /// What the device does at the moment.
    public var phase: ClientDialogPhase { state.withLock { $0.machine.phase } }

    /// The device listens from now on (VA-7). A reply that is being given is interrupted.
    ///
    /// - Throws: as ``ClientSession/tapDialog(of:language:id:)``.
    @discardableResult
    public func tap(language: String? = nil) async throws(ApusError) -> ClientDialog {
        callbacks.onInterrupt()
        let request = ClientTapDialogRequest.with {
            ($0.device, $0.id, $0.language) = (device.rawValue, Self.newID(), language ?? "")
        }
        let dialog = try await repeating(request)
        show(dialog)
        return dialog
    }

    /// The device has heard its wake phrase. If others of its room have heard it, too, the loudest one listens (VA-8).
    /// A sound for the person is to be played after this returns true, and not before.
    ///
    /// - Parameters:
    ///   - signalToNoise: in decibel, as the microphone has it.
    ///   - energy: in decibel.
    ///   - ended: when the phrase ended.
    /// - Returns: whether this device listens.
    /// - Throws: as ``ClientSession/ask(_:timeout:)``.
    public func wake(
        phrase: String, signalToNoise: Double, energy: Double, ended: MonotonicTime = .now(), language: String? = nil
    ) async throws(ApusError) -> Bool {
        var request = ClientWakeDialogRequest.with {
            ($0.id, $0.phrase, $0.language) = (Self.newID(), phrase, language ?? "")
            ($0.signalToNoiseDb, $0.energyDb) = (signalToNoise, energy)
        }
        var pauses = Backoff(first: Self.pauses.first, longest: Self.pauses.longest)
        for attempt in 1... {
            let since = MonotonicTime.now() - ended
            request.sinceMs = UInt32(clamping: min(60_000, Int64(since.milliseconds)))
            do throws(ApusError) {
                let answer = try await cluster.ask(request, timeout: .seconds(2))
                if answer.isListening { callbacks.onInterrupt() }
                show(answer.dialog)
                return answer.isListening
            } catch {
                guard attempt < Self.attemptsMax, Self.mayRepeat(error),
                    (try? await Task.sleep(for: pauses.next())) != nil
                else { throw error }
            }
        }
        return false
    }

    /// Ends whatever the dialog does (VA-9). The device is idle at once, also if it is not connected.
    ///
    /// - Throws: as ``ClientSession/stopDialog(of:)``.
    public func stopActivity() async throws(ApusError) {
        endAtOnce()
        let dialog = try await repeating(ClientStopDialogRequest.with { $0.device = device.rawValue })
        show(dialog)
    }

    /// The device has given the whole reply. After a question, it listens.
    ///
    /// - Throws: as ``ClientSession/ask(_:timeout:)``.
    public func spoken(_ turn: ClientDialogTurn) async throws(ApusError) {
        let request = ClientSpokenDialogRequest.with { ($0.id, $0.device) = (turn.id, device.rawValue) }
        show(try await repeating(request))
    }

    /// The audio source of the device has failed, such as a microphone that was unplugged (VA-14): whatever owns the
    /// source calls this. The dialog is idle.
    public func audioInputFailed(_ message: String) {
        endAtOnce()
        callbacks.onAudioInputError(message)
        feed.yield(.stop)
    }

    /// The device has received a directive: it is logged (VA-14).
    public func directiveReceived(_ directive: ClientDialogDirective) { callbacks.onDirective(directive.json) }

    private func endAtOnce() {
        callbacks.onInterrupt()
        notify { $0.machine.ended() }
    }

    // MARK: - Sentences and events

    /// The listening that goes on; empty: none. A recognizer keeps it from the first word on, for
    /// ``say(_:language:heard:)``.
    public var listening: String { state.withLock { $0.listening } }

    /// Says a sentence. ``Callbacks/onUpload`` has what becomes of it, and ``Callbacks/onReply`` the reply.
    ///
    /// - Parameter heard: the ``listening`` in which the words were heard: after a stop or another tap, the sentence is
    ///   refused. Nil: the one that goes on.
    /// - Returns: names the upload.
    @discardableResult
    public func say(_ text: String, language: String? = nil, heard: String? = nil) -> UploadStateMachine.ID {
        upload { state in
            .sentence(
                .with {
                    ($0.device, $0.text, $0.language) = (device.rawValue, text, language ?? "")
                    ($0.id, $0.context, $0.heard) = (Self.newID(), state.context, heard ?? state.listening)
                })
        }
    }

    /// Sends a custom event to the skill of the home (VA-11), with the context that was set.
    ///
    /// - Parameters:
    ///   - sentence: the id of the sentence that it follows from; nil: none.
    ///   - payload: a JSON object of at most 8 KiB; empty: `{}`.
    /// - Returns: names the upload.
    @discardableResult
    public func sendCustomEvent(
        _ name: String = "Custom", dialogRequestID sentence: String? = nil, payload: String = ""
    ) -> UploadStateMachine.ID {
        upload { state in
            .event(
                .with {
                    ($0.name, $0.dialogRequestID, $0.payload) = (name, sentence ?? "", payload)
                    ($0.id, $0.context) = (Self.newID(), state.context)
                })
        }
    }

    /// Withdraws an upload. What the cluster has received may still be carried out.
    public func cancel(_ id: UploadStateMachine.ID) { run { $0.cancel(id) } }

    /// Sets what the device shows and plays (VA-12). Nothing is sent: the next sentences and events carry it.
    ///
    /// - Parameter json: an array of `{"header":…,"payload":…}` of at most 8 KiB; empty: none.
    /// - Throws: 21031 if it is not.
    public func setContext(_ json: String) throws(ApusError) {
        if !json.isEmpty {
            guard json.utf8.count <= Self.contextByteCountMax,
                case .array(let items)? = JSONValue(ArraySlice(json.utf8)),
                items.allSatisfy({ $0["header"] != nil && $0["payload"] != nil })
            else {
                throw ApusError(.badParameter, "a context is an array of objects with a header and a payload")
            }
        }
        state.withLock { $0.context = json }
    }

    /// What was set last; empty: none. Nothing is sent.
    public func getContext() -> String { state.withLock { $0.context } }

    private func upload(_ content: (State) -> Upload) -> UploadStateMachine.ID {
        let id = state.withLock { state in
            state.lastID += 1
            state.contents[state.lastID] = content(state)
            return state.lastID
        }
        run { $0.add(id) }
        return id
    }

    /// Changes the queue, and carries out what follows.
    private func run(_ change: (inout UploadStateMachine) -> [UploadStateMachine.Action]) {
        let (actions, generation) = state.withLock { (change(&$0.uploads), $0.generation) }
        for action in actions {
            switch action {
            case .synchronize: feed.yield(.synchronize(generation: generation))
            case .send(let id): feed.yield(.send(id))
            case .abort: break  // Its answer is not waited for, and comes to nothing.
            case .report(let id, let result, let message):
                if result.isEnd { state.withLock { $0.contents[id] = nil } }
                callbacks.onUpload(id, result, message)
            }
        }
    }

    private func perform(_ work: Work) async {
        switch work {
        case .synchronize(let generation): await synchronize(generation)
        case .send(let id): await send(id)
        case .stop:
            let stop = ClientStopDialogRequest.with { $0.device = device.rawValue }
            if let dialog = try? await repeating(stop) { show(dialog) }
        }
    }

    private func send(_ id: UploadStateMachine.ID) async {
        guard let content = state.withLock({ $0.contents[id] }) else { return }
        do throws(ApusError) {
            let isEmpty: Bool
            switch content {
            case .sentence(let request):
                let turn = try await cluster.ask(request, timeout: Self.sentenceTimeout)
                isEmpty = turn.reply.isEmpty
                // What was stopped, or withdrawn, is not answered aloud.
                let isWanted = turn.outcome != .interrupted && state.withLock { $0.contents[id] != nil }
                if !isEmpty, isWanted { callbacks.onReply(turn) }
            case .event(let request):
                isEmpty = try await cluster.ask(request, timeout: .seconds(5)).directives == 0
            }
            run { $0.answered(id, isEmpty ? .successNoContent : .success, "") }
        } catch {
            run { $0.answered(id, UploadState(error), error.message) }
        }
    }

    // MARK: - The link

    /// A connection is open.
    package func connected() {
        notify { state in
            state.generation += 1
            return state.machine.connecting()
        }
        run { $0.connected() }
    }

    /// The session has no connection any more.
    package func disconnected() {
        notify { $0.machine.disconnected() }
        run { $0.disconnected() }
    }

    private func synchronize(_ generation: Int) async {
        var pauses = Backoff(first: Self.pauses.first, longest: Self.pauses.longest)
        while state.withLock({ $0.generation }) == generation {
            let context = getContext()
            let request = ClientSynchronizeDialogRequest.with {
                // What it did was over with the connection.
                ($0.state, $0.context, $0.alerts) = (ClientDialogPhase.idle.name, context, callbacks.alerts())
            }
            do throws(ApusError) {
                let answer = try await cluster.ask(request, timeout: .seconds(5))
                guard state.withLock({ $0.generation }) == generation else { return }
                // Ready before it is shown: what a callback adds is sent.
                run { $0.synchronized() }
                notify { state in
                    state.listening = answer.dialog.listening
                    return state.machine.synchronized(answer.dialog.phase, version: answer.dialog.version)
                }
                return callbacks.onAlerts(answer.endedAlerts, answer.ringingAlerts)
            } catch {
                guard Self.mayRepeat(error) else {
                    return log.warning("The dialog is not synchronized", metadata: Logger.facts(of: error))
                }
            }
            guard (try? await Task.sleep(for: pauses.next())) != nil else { return }
        }
    }

    // MARK: - Parts

    private func changed(_ change: ClientDialogChanged) {
        notify { state in
            if change.version > state.machine.version {
                state.listening = change.phases.last == .listening ? change.listening : ""
            }
            return state.machine.changed(change.phases, version: change.version)
        }
    }

    private func show(_ dialog: ClientDialog) {
        notify { state in
            if dialog.version > state.machine.version { state.listening = dialog.listening }
            return state.machine.changed([dialog.phase], version: dialog.version)
        }
    }

    private func notify(_ change: (inout State) -> [ClientDialogPhase]) {
        for phase in state.withLock({ change(&$0) }) { callbacks.onState(phase) }
    }

    /// A request whose id or effect makes a repetition harmless.
    private func repeating<M: ClientRequestMessage>(_ request: M) async throws(ApusError) -> M.Reply {
        var pauses = Backoff(first: Self.pauses.first, longest: Self.pauses.longest)
        for _ in 1..<Self.attemptsMax {
            do throws(ApusError) {
                return try await cluster.ask(request, timeout: .seconds(5))
            } catch {
                guard Self.mayRepeat(error), (try? await Task.sleep(for: pauses.next())) != nil else { throw error }
            }
        }
        return try await cluster.ask(request, timeout: .seconds(5))
    }

    /// Whether a request that has an id may be sent again after an error.
    package static func mayRepeat(_ error: ApusError) -> Bool {
        let state = UploadState(error)
        return state == .notConnected || state == .serverInternalError || state == .throttled
            || error.code == .answerTimedOut || error.code == .deadlineExceeded
    }

    /// A random id of a sentence: 32 hexadecimal digits.
    package static func newID() -> String {
        var generator = SystemRandomNumberGenerator()
        return Hexadecimal.text((0..<16).map { _ in UInt8.random(in: .min ... .max, using: &generator) })
    }
}
