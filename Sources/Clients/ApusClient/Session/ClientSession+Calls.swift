import ApusContract
public import ApusCore
import NIOCore
import SwiftProtobuf
import Synchronization

/// Video calls (CALL-4 to CALL-11, docs/calls.md).
///
/// A client takes calls while it iterates ``calls()``, and can place calls then. All functions throw −2508 for a call
/// that is over or unknown, 8003 if this client has no part in it, and 21025 if no node is connected for five seconds.
///
/// A request whose answer is lost, because the node has died, is sent again for five seconds. It has its effect once.
extension ClientSession {
    /// Who calls or is called.
    public enum CallParty: Sendable, Hashable {
        case device(DeviceID)
        /// The apps of an account.
        case account(AccountID)
    }

    /// Which accept and which reject decide (CALL-4).
    public enum CallType: UInt32, Sendable {
        case oneToOne = 1
        /// One reject ends the call.
        case oneToMany = 2
        /// A reject removes the party that rejects.
        case oneToManySpecial = 3
    }

    /// A call as this client sees it (CALL-3). A flag never changes back.
    public struct Call: Sendable, Equatable {
        /// The session id.
        public let id: String
        public let type: CallType
        public let isOutgoing: Bool
        /// A called client has rung: for the caller any, for a called client itself.
        public let isAnswered: Bool
        public let isAccepted: Bool
        /// Both sides have media.
        public let isConnected: Bool
        public let isEnded: Bool
        /// Why it has ended; nil for a normal end, and while it goes on.
        public let error: ApusError?
        /// In a word, such as `hung_up`; empty while it goes on.
        public let reason: String
    }

    /// What happens in a call.
    public struct CallNotice: Sendable, Equatable {
        public enum Stage: Sendable, Equatable {
            /// A called client is to ring, for this long at most.
            case ring(timeout: Duration)
            /// The caller learns that a called client rings.
            case ringing
            case accepted
            /// To the caller: nobody has accepted. The answering machine of the peer plays its greeting, and takes a
            /// message: what the caller publishes until it hangs up.
            case message
            /// The error is nil for a normal end.
            case ended(ApusError?, reason: String)
        }

        /// The session id.
        public let call: String
        public let stage: Stage
        public let isOutgoing: Bool
        /// Who calls; for the caller, who has accepted.
        public let peer: CallParty?
        /// With a ring: the JSON object of the caller, as it was sent; or empty.
        public let extra: String
        public let type: CallType
        /// With ``Stage/accepted``: access to the relays, for a direct connection of the two sides; nil where no relay
        /// takes clients.
        public let relay: RelayCredentials?
    }

    /// The calls of this client. Each notice comes once. Receiving a ring reports that this client rings (CALL-7).
    /// A call of which no node knows any more, since all of them died, ends with −2532 when the client has returned.
    ///
    /// One sequence at a time; see ``events(of:as:bufferMax:)``.
    public func calls() -> Calls { Calls(session: self) }

    /// The sequence of ``calls()``.
    public struct Calls: AsyncSequence, Sendable {
        public typealias Element = CallNotice
        let session: ClientSession

        public func makeAsyncIterator() -> Iterator {
            Iterator(
                session: session,
                events: session.events(of: ClientSession.callTopic, as: ClientCallNotice.self).makeAsyncIterator())
        }

        public struct Iterator: AsyncIteratorProtocol {
            /// The calls whose repetitions are recognized.
            private static var seenMax: Int { 64 }

            let session: ClientSession
            var events: AsyncThrowingStream<TopicEvent<ClientCallNotice>, any Error>.Iterator
            private var seen: [(call: String, stage: ClientCallStage)] = []

            init(
                session: ClientSession, events: AsyncThrowingStream<TopicEvent<ClientCallNotice>, any Error>.Iterator
            ) {
                (self.session, self.events) = (session, events)
            }

            public mutating func next() async throws -> CallNotice? { try await next(isolation: nil) }

            public mutating func next(isolation actor: isolated (any Actor)?) async throws(any Error) -> CallNotice? {
                while let event = try await events.next(isolation: actor) {
                    let notice = event.message
                    session.openCalls.withLock { $0.noticed(notice) }
                    session.confirm(notice)
                    let index = seen.firstIndex { $0.call == notice.call }
                    if let index, seen[index].stage.rawValue >= notice.stage.rawValue { continue }
                    if let index { seen.remove(at: index) }
                    seen.append((notice.call, notice.stage))
                    if seen.count > Self.seenMax { seen.removeFirst() }
                    if let notice = CallNotice(notice) { return notice }
                }
                return nil
            }
        }
    }

    /// Without waiting: a notice that is not confirmed comes again.
    private func confirm(_ notice: ClientCallNotice) {
        let isRing = notice.stage == .ring && !notice.outgoing
        let event = Self.event(isRing ? .rang : .confirmed, of: notice.call, stage: notice.stage)
        guard notice.stage == .accepted else { return post(event) }
        acceptances.withLock { _ = $0.insert(notice.call) }
        eventLoop.scheduleTask(in: TimeAmount(Self.acceptanceDelay)) { [weak self] in
            guard let self, self.acceptances.withLock({ $0.remove(notice.call) }) != nil else { return }
            self.post(event)
        }
    }

    /// A report that the client has media also confirms the accept, and usually follows within this time.
    private static let acceptanceDelay = Duration.milliseconds(500)

    static func event(
        _ event: ClientCallEvent, of id: String, stage: ClientCallStage = .unspecified, code: Int32 = 0
    ) -> ClientReportCallRequest {
        .with { ($0.call, $0.event, $0.stage, $0.code) = (id, event, stage, code) }
    }

    private static let twoWayVideoPath = "ProReadonly._twoWayVideo"

    /// Whether a device shows its caller's video, and sends its own (CALL-1). The model of the device says so, also
    /// while the device is offline.
    ///
    /// - Throws: 8002 and 8003 if this account has no such device, −2502 if the model says something else, otherwise as
    ///   ``ask(_:timeout:)``.
    public func hasTwoWayVideo(_ device: DeviceID) async throws(ApusError) -> Bool {
        let json: String
        do throws(ApusError) {
            json = try await readProperty(of: device, path: Self.twoWayVideoPath + ".stVal").json
        } catch {
            guard error.code == .propertyUnknown else { throw error }
            return false
        }
        switch json {
        case "1", "true": return true
        case "0", "false": return false
        default: throw ApusError(.callResponseInvalid, "\(Self.twoWayVideoPath) is neither 0 nor 1")
        }
    }

    /// A device says whether it has two-way video (CALL-1). The cluster keeps it.
    public func reportTwoWayVideo(_ has: Bool) async throws(ApusError) {
        try await reportProperty(path: Self.twoWayVideoPath, json: "{\"stVal\":\(has ? 1 : 0)}")
    }

    /// Places a call (CALL-6). The notices of ``calls()`` say what becomes of it.
    ///
    /// - Parameters:
    ///   - targets: devices; or of a device, accounts that may use it. A device that names none calls its own account.
    ///   - timeout: 5 to 120 seconds.
    ///   - extra: a JSON object of at most 4 KiB, or an empty text.
    /// - Throws: −2500 if a parameter is out of range, −2501 for an unknown target, 8003 and 12004 for one that this
    ///   client may not call, 8000 if none of them takes calls, 21025 if nobody iterates ``calls()``.
    public func startCall(
        to targets: [CallParty], type: CallType = .oneToOne, timeout: Duration = .seconds(30), extra: String = ""
    ) async throws(ApusError) -> Call {
        let request = ClientStartCallRequest.with {
            ($0.type, $0.extra, $0.id) = (type.rawValue, extra, Self.randomCommandID())
            $0.timeoutSeconds = UInt32(clamping: timeout.components.seconds)
            $0.targets = targets.map { target in
                switch target {
                case .device(let id): .with { $0.device = id.rawValue }
                case .account(let id): .with { $0.account = id.rawValue }
                }
            }
        }
        let isSent = Atomic<Bool>(false)
        // The subscription of the notices may be on its way.
        let deadline = MonotonicTime.now() + .seconds(3)
        while true {
            do throws(ApusError) {
                let call = try await untilKnown { timeout throws(ApusError) in
                    var request = request
                    request.again = isSent.exchange(true, ordering: .relaxed)
                    return try await self.ask(request, timeout: timeout)
                }
                if !call.isEnded { openCalls.withLock { $0.placed(call.id) } }
                return call
            } catch {
                guard error.code == .unavailable, MonotonicTime.now() < deadline else { throw error }
            }
            guard (try? await Task.sleep(for: .milliseconds(50))) != nil else { throw ApusError(.cancelled) }
        }
    }

    private static let repeatTime = Duration.seconds(5)

    /// Repeats a request while nodes fail. One that is refused because of a limit is not repeated.
    private func untilKnown(
        _ request: @Sendable (Duration) async throws(ApusError) -> ClientCallInfo
    ) async throws(ApusError) -> Call {
        let result = try await repeating(until: .now() + Self.repeatTime) {
            timeout throws(ApusError) -> Result<ClientCallInfo, ApusError> in
            do throws(ApusError) {
                return .success(try await request(timeout))
            } catch {
                guard error.code == .overloaded else { throw error }
                return .failure(error)
            }
        }
        return Call(try result.get())
    }

    /// Accepts a call that rings here. The first client that accepts has the call; the others receive −2522.
    @discardableResult
    public func acceptCall(_ id: String) async throws(ApusError) -> Call { try await report(.accepted, of: id) }

    @discardableResult
    public func rejectCall(_ id: String) async throws(ApusError) -> Call { try await report(.rejected, of: id) }

    /// Ends a call: before it is accepted the caller cancels it, and a called client rejects it.
    @discardableResult
    public func hangUpCall(_ id: String) async throws(ApusError) -> Call { try await report(.hungUp, of: id) }

    /// Reports that this client has media.
    @discardableResult
    public func reportCallConnected(_ id: String) async throws(ApusError) -> Call {
        try await report(.connected, of: id)
    }

    /// Reports that this client cannot go on (CALL-13, CALL-14).
    ///
    /// - Parameter code: −2531, −2532, −2533, −2570 or −2571; another one is refused with −2500.
    @discardableResult
    public func reportCallFailed(_ id: String, _ code: ErrorCode) async throws(ApusError) -> Call {
        try await report(.failed, of: id, code: code.number)
    }

    func report(
        _ event: ClientCallEvent, of id: String, stage: ClientCallStage = .unspecified, code: Int32 = 0
    ) async throws(ApusError) -> Call {
        let request = Self.event(event, of: id, stage: stage, code: code)
        acceptances.withLock { _ = $0.remove(id) }
        openCalls.withLock { $0.reported(event, of: id) }
        return try await untilKnown { timeout throws(ApusError) in try await self.ask(request, timeout: timeout) }
    }
}

extension ClientSession.Call {
    fileprivate init(_ info: ClientCallInfo) {
        (id, isOutgoing, isAnswered) = (info.call, info.outgoing, info.answered)
        type = ClientSession.CallType(info.type)
        (isAccepted, isConnected, isEnded) = (info.accepted, info.connected, info.ended)
        error = info.code == 0 ? nil : ApusError(ErrorCode(number: info.code))
        reason = info.reason
    }
}

extension ClientSession.CallType {
    /// A type of a later release counts as the first.
    fileprivate init(_ number: UInt32) { self = Self(rawValue: number) ?? .oneToOne }
}

extension ClientSession.CallNotice {
    /// Nil for a stage of a later release.
    fileprivate init?(_ notice: ClientCallNotice) {
        switch notice.stage {
        case .ring: stage = notice.outgoing ? .ringing : .ring(timeout: .milliseconds(Int64(notice.timeoutMs)))
        case .accepted: stage = notice.message ? .message : .accepted
        case .ended:
            let error = notice.code == 0 ? nil : ApusError(ErrorCode(number: notice.code))
            stage = .ended(error, reason: notice.reason)
        case .unspecified, .UNRECOGNIZED: return nil
        }
        (call, isOutgoing, extra) = (notice.call, notice.outgoing, notice.extra)
        type = ClientSession.CallType(notice.type)
        relay = notice.hasRelay ? ClientSession.RelayCredentials(notice.relay) : nil
        peer = notice.hasPeer ? ClientSession.CallParty(notice.peer) : nil
    }
}

extension ClientSession.CallParty {
    init(_ party: ClientCallParty) {
        self =
            party.device.isEmpty
            ? .account(AccountID(unchecked: party.account)) : .device(DeviceID(unchecked: party.device))
    }
}
