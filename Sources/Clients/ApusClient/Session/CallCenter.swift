import ApusContract
public import ApusCore
import Foundation
import Synchronization

/// Makes the views of calls (CALL-2, CALL-12). An app registers one for each kind of call that it shows.
public protocol CallInterfaceManager: Sendable {
    /// The `bizType` in the `extra` of calls that it shows, such as `screen_ipc`.
    var identifier: String { get }

    /// Makes the view of a call, which may be one that this client places.
    func makeInterface(for call: CallCenter.Entry) async -> any CallInterface
}

/// The view of one call (CALL-12). ``CallCenter`` calls each function once, in the order of this protocol, one after
/// the other; ``callPeerDidRespond()`` comes only to the caller, and ``executeHeavyTasksCompleted()`` after the accept.
public protocol CallInterface: Sendable {
    /// Prepares the view.
    ///
    /// - Throws: an error with which the call is ended: the view cannot be shown.
    func setUp(for call: CallCenter.Entry, actions: CallActions) async throws(ApusError)
    func present() async
    /// The called client rings.
    func callPeerDidRespond() async
    /// The call was accepted, at this side or at the other: media can begin.
    func executeHeavyTasksCompleted() async
    /// - Parameter error: nil for a normal end.
    func callEnd(with error: ApusError?) async
    func dismiss() async
}

/// What the view of a call can do (CALL-12). All functions throw as those of ``ClientSession`` do.
public struct CallActions: Sendable {
    let session: ClientSession
    let call: String
    /// This side has ended the call: there is no notice of that.
    let finished: @Sendable (ApusError?) -> Void

    public func onRing() async throws(ApusError) { try await report(.rang) }
    public func onAccept() async throws(ApusError) { try await report(.accepted) }
    public func onConnected() async throws(ApusError) { try await report(.connected) }

    public func onReject() async throws(ApusError) {
        try await report(.rejected)
        finished(nil)
    }

    public func onCancel() async throws(ApusError) {
        try await report(.cancelled)
        finished(nil)
    }

    public func onHangUp() async throws(ApusError) {
        try await report(.hungUp)
        finished(nil)
    }

    /// - Parameter code: −2531, −2532, −2533, −2570 or −2571.
    public func onException(_ code: ErrorCode) async throws(ApusError) {
        try await report(.failed, code: code.number)
        finished(ApusError(code))
    }

    /// A call that is over, or in which this client has no part any more, is not shown on.
    private func report(_ event: ClientCallEvent, code: Int32 = 0) async throws(ApusError) {
        do throws(ApusError) {
            _ = try await session.report(event, of: call, code: code)
        } catch {
            if [.callUnknown, .illegalRelation, .deviceDisabled].contains(error.code) { finished(error) }
            throw error
        }
    }
}

/// The calls of an app, one at a time, with a view for each (CALL-2, CALL-5, CALL-9, CALL-12).
///
/// Isolation: may be called from any task. ``run()`` is called once, and drives the views.
public final class CallCenter: Sendable {
    /// A call that is shown.
    public struct Entry: Sendable, Equatable {
        /// The session id.
        public let id: String
        public let isOutgoing: Bool
        /// Who calls; for the caller, the first called party.
        public let peer: ClientSession.CallParty?
        /// The JSON object of the caller, as it was sent; or empty.
        public let extra: String
    }

    /// A call that is not shown (CALL-9).
    public struct InvalidCall: Sendable, Equatable {
        public enum Source: Sendable, Equatable {
            case connection
            case push
        }

        /// The session id; empty if the notification has none.
        public let id: String
        public let source: Source
        public let error: ApusError
    }

    private struct State {
        var managers: [String: any CallInterfaceManager] = [:]
        /// The call that is shown; its view is nil until it is made.
        var current: (entry: Entry, view: (any CallInterface)?)?
        /// Its view knows that the called client rings.
        var hasResponded = false
        var isAccepted = false
        /// An answering machine has answered.
        var isMessage = false
        /// A call is being placed, and not shown yet.
        var isPlacing = false
        /// Notices that came while a call was being placed; at most ``earlyMax``.
        var early: [ClientSession.CallNotice] = []
    }

    /// What ``run()`` handles, in order.
    private enum Event: Sendable {
        case placed(Entry, any CallInterfaceManager)
        case notPlaced
        case notice(ClientSession.CallNotice)
        /// This side has ended it.
        case finished(String, ApusError?)
    }

    private static let earlyMax = 16

    /// Calls that are not shown, the oldest first. At most 64 wait.
    public let invalidCalls: AsyncStream<InvalidCall>
    private let invalidFeed: AsyncStream<InvalidCall>.Continuation
    /// Bounded by the session, whose notices it holds.
    private let events: AsyncStream<Event>
    private let eventFeed: AsyncStream<Event>.Continuation
    private let session: ClientSession
    private let state = Mutex(State())

    public init(session: ClientSession) {
        self.session = session
        (invalidCalls, invalidFeed) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(64))
        (events, eventFeed) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1024))
    }

    /// Registers a manager, in place of one with the same identifier.
    public func register(_ manager: any CallInterfaceManager) {
        state.withLock { $0.managers[manager.identifier] = manager }
    }

    /// A call is shown or being placed (CALL-5).
    public var isOnCalling: Bool { state.withLock { $0.current != nil || $0.isPlacing } }

    /// Places a call, and shows it.
    ///
    /// - Parameters:
    ///   - identifier: the manager that shows it; the `bizType` of the call.
    ///   - extra: a JSON object with further members of the call's `extra`, such as `keepConnect`; or an empty text.
    /// - Throws: −2504 if there is no such manager, −2520 if another call is shown, −2500 if `extra` is no object;
    ///   otherwise as
    ///   ``ClientSession/startCall(to:type:timeout:extra:)``.
    public func startCall(
        to targets: [ClientSession.CallParty], type: ClientSession.CallType = .oneToOne,
        timeout: Duration = .seconds(30), identifier: String, extra: String = ""
    ) async throws(ApusError) -> Entry {
        let json = try Self.extra(extra, bizType: identifier)
        let manager = try state.withLock { state throws(ApusError) in
            guard let manager = state.managers[identifier] else { throw ApusError(.callInterfaceMissing) }
            guard state.current == nil, !state.isPlacing else { throw ApusError(.onCalling) }
            state.isPlacing = true
            return manager
        }
        do throws(ApusError) {
            let call = try await session.startCall(to: targets, type: type, timeout: timeout, extra: json)
            let entry = Entry(id: call.id, isOutgoing: true, peer: targets.first, extra: json)
            eventFeed.yield(.placed(entry, manager))
            return entry
        } catch {
            eventFeed.yield(.notPlaced)
            throw error
        }
    }

    private static func extra(_ text: String, bizType: String) throws(ApusError) -> String {
        let object = try? JSONSerialization.jsonObject(with: Data((text.isEmpty ? "{}" : text).utf8))
        guard var members = object as? [String: Any] else {
            throw ApusError(.callParametersInvalid, "extra is a JSON object")
        }
        members["bizType"] = bizType
        guard let data = try? JSONSerialization.data(withJSONObject: members, options: [.sortedKeys]) else {
            throw ApusError(.callParametersInvalid, "extra is a JSON object")
        }
        return String(decoding: data, as: UTF8.self)
    }

    /// Takes a push notification of a call. What is not to be shown comes to ``invalidCalls``.
    ///
    /// - Parameter payload: as ``ClientSession/joinCall(push:)``.
    public func received(push payload: String) async {
        do throws(ApusError) {
            _ = try await session.joinCall(push: payload)
        } catch {
            let call = (try? CallPush(payload))?.call ?? ""
            invalidFeed.yield(InvalidCall(id: call, source: .push, error: error))
        }
    }

    /// Shows calls until the task is cancelled.
    ///
    /// - Throws: as ``ClientSession/calls()``.
    public func run() async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { [session, eventFeed] in
                for try await notice in session.calls() { eventFeed.yield(.notice(notice)) }
            }
            group.addTask { for await event in self.events { await self.handle(event) } }
            defer { group.cancelAll() }
            try await group.next()
        }
        if let shown = state.withLock({ $0.current?.entry.id }) { await end(shown, ApusError(.mediaDisconnected)) }
    }

    private func handle(_ event: Event) async {
        switch event {
        case .placed(let entry, let manager):
            await show(entry, manager)
            await handleEarly()
        case .notPlaced: await handleEarly()
        case .notice(let notice):
            let isEarly = state.withLock { state in
                guard state.isPlacing, state.early.count < Self.earlyMax else { return false }
                state.early.append(notice)
                return true
            }
            if !isEarly { await handle(notice) }
        case .finished(let call, let error): await end(call, error)
        }
    }

    private func handleEarly() async {
        let early = state.withLock { state in
            defer { (state.isPlacing, state.early) = (false, []) }
            return state.early
        }
        for notice in early { await handle(notice) }
    }

    /// Ends the view of the call, if it is shown. Returns false otherwise.
    @discardableResult
    private func end(_ call: String, _ error: ApusError?) async -> Bool {
        guard let shown = view(of: call) else { return false }
        await shown.callEnd(with: error)
        await shown.dismiss()
        state.withLock { $0.current = nil }
        return true
    }

    private func handle(_ notice: ClientSession.CallNotice) async {
        let shown = view(of: notice.call)
        switch notice.stage {
        case .ringing where shown == nil, .accepted where shown == nil, .message where shown == nil:
            // The answer to the call that was placed was lost. Nobody would see it.
            session.post(.hungUp, of: notice.call)
        case .ring: await ring(notice)
        case .ringing: if let shown { await respond(shown) }
        // The app publishes, as to a peer that has accepted.
        case .accepted, .message:
            // The notice that it rings may come too late to be passed on.
            state.withLock { ($0.isAccepted, $0.isMessage) = (true, notice.stage == .message) }
            if let shown, notice.isOutgoing { await respond(shown) }
            await shown?.executeHeavyTasksCompleted()
        case .ended(let error, _):
            guard await !end(notice.call, error) else { return }
            // It ended before it was shown, or this side has ended it.
            if let error { invalid(notice, error) }
        }
    }

    private func respond(_ view: any CallInterface) async {
        let isFirst = state.withLock { state in
            defer { state.hasResponded = true }
            return !state.hasResponded
        }
        if isFirst { await view.callPeerDidRespond() }
    }

    private func ring(_ notice: ClientSession.CallNotice) async {
        struct Extra: Decodable {
            var bizType: String?
        }
        let extra = try? JSONDecoder().decode(Extra.self, from: Data(notice.extra.utf8))
        let manager = state.withLock { state in
            extra?.bizType.flatMap { state.managers[$0] }
                ?? (extra?.bizType == nil ? state.managers.values.first : nil)
        }
        guard let manager else { return refuse(notice, ApusError(.callInterfaceMissing)) }
        // Both sides call each other, and the cluster has chosen the other side's call. Or the called party calls back
        // while this side leaves a message (docs/calls.md).
        let crossing = state.withLock { state -> (id: String, isMessage: Bool)? in
            guard let entry = state.current?.entry, entry.isOutgoing, !state.isAccepted || state.isMessage,
                entry.peer == nil || entry.peer == notice.peer
            else { return nil }
            return (entry.id, state.isMessage)
        }
        if let crossing {
            session.post(.cancelled, of: crossing.id)
            await end(crossing.id, crossing.isMessage ? nil : ApusError(.calleeBusy))
        }
        guard !isOnCalling else { return refuse(notice, ApusError(.onCalling)) }
        await show(Entry(id: notice.call, isOutgoing: false, peer: notice.peer, extra: notice.extra), manager)
    }

    private func show(_ entry: Entry, _ manager: any CallInterfaceManager) async {
        state.withLock {
            ($0.current, $0.hasResponded) = ((entry, nil), false)
            ($0.isAccepted, $0.isMessage) = (false, false)
        }
        let view = await manager.makeInterface(for: entry)
        do throws(ApusError) {
            let actions = CallActions(session: session, call: entry.id) { [eventFeed] error in
                eventFeed.yield(.finished(entry.id, error))
            }
            try await view.setUp(for: entry, actions: actions)
        } catch {
            state.withLock { $0.current = nil }
            // Other apps of the account may take it.
            _ =
                entry.isOutgoing
                ? try? await session.hangUpCall(entry.id)
                : try? await session.reportCallFailed(entry.id, .mediaConnectFailed)
            invalidFeed.yield(InvalidCall(id: entry.id, source: .connection, error: error))
            return
        }
        state.withLock { $0.current = (entry, view) }
        await view.present()
    }

    private func view(of call: String) -> (any CallInterface)? {
        state.withLock { $0.current?.entry.id == call ? $0.current?.view : nil }
    }

    private func refuse(_ notice: ClientSession.CallNotice, _ error: ApusError) {
        session.post(.busy, of: notice.call)
        invalid(notice, error)
    }

    private func invalid(_ notice: ClientSession.CallNotice, _ error: ApusError) {
        invalidFeed.yield(InvalidCall(id: notice.call, source: .connection, error: error))
    }
}
