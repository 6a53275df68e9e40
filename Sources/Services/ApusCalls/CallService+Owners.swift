import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import CoreMetrics
import Foundation
import SwiftProtobuf
import Synchronization

// Starts and events of calls: at the node of the client, which names the sender, and at the node of the call's owner,
// which checks the rights. One message takes a start or an accept from one to the other.

/// The node of a caller asks the node of the first called party's owner to check a call, and to place it.
extension CallOrder: NodeMessage {
    typealias Reply = CallLegView
    static var method: UInt16 { 0x004e }
    package var isWithinBounds: Bool {
        (0...31_536_000_000).contains(leftMs) && (0...86_400_000).contains(timeoutMs)
            && caller.isValid && called.allSatisfy(\.isValid)
    }
}

/// The node of a leg asks the node of the call's owner to accept, if the leg still has the right to.
extension CallAccept: NodeMessage {
    typealias Reply = CallLegView
    static var method: UInt16 { 0x004f }
    package var isWithinBounds: Bool { (0...31_536_000_000).contains(leftMs) && report.isWithinBounds }
}

extension CallService {
    // MARK: - At the node of the client

    /// Places a call (CALL-6).
    ///
    /// - Throws: 10007 after too many calls of this account, −2500 if a parameter is out of range, −2501 for a party
    ///   that the cluster does not know, 8003 and 12004 for one that this client may not call, 20011 for a device that
    ///   is disabled, 8000 if no called party has a client that takes calls, 21025 for a connection that takes none,
    ///   21031 for an id that is not valid.
    func start(_ request: ClientStartCallRequest, _ call: ClientCall) async throws(ApusError) -> ClientCallInfo {
        let sender = try sender(call)
        guard let connection = call.connection, connections.number(of: connection) != nil else {
            throw ApusError(.unavailable, "who calls subscribes to \(Self.topicKind)/\(Self.ownKey) first")
        }
        guard starts.withLock({ $0.take(call.session.account.rawValue, at: .now()) }) else {
            throw ApusError(.overloaded, "the account places too many calls; try again later")
        }
        let number = try Self.number(request) ?? RequestID(high: .random(in: 0...(.max)), low: .random(in: 0...(.max)))
        var order = CallOrder.with {
            ($0.high, $0.low) = (number.high, number.low)
            ($0.caller, $0.endpoint, $0.session) = (sender.party, sender.endpoint.rawValue, sender.session)
            ($0.type, $0.extra) = (CallType(rawValue: Int(request.type)) ?? .unspecified, Data(request.extra.utf8))
            ($0.timeoutMs, $0.again) = (Int64(request.timeoutSeconds) * 1000, request.again)
        }
        order.called = try called(request, call)
        let id = try order.id()
        let view = try await atOwner(of: id, order, call) { order, isLost throws(ApusError) in
            var order = order
            if isLost { order.again = true }
            return try await place(order)
        }
        placed.increment()
        return ClientCallInfo(id, view)
    }

    /// Reports an event of the client's leg.
    ///
    /// - Throws: as ``CallStateMachine/handle(_:from:at:_:)-(CallEvent,_,_,_)``.
    func report(_ request: ClientReportCallRequest, _ call: ClientCall) async throws(ApusError) -> ClientCallInfo {
        let sender = try sender(call)
        guard let id = CallID(rawValue: request.call) else { throw ApusError(.callUnknown) }
        let kind = CallEventKind(rawValue: request.event.rawValue) ?? .unspecified
        guard (CallEventKind.joined.rawValue...CallEventKind.confirmed.rawValue).contains(kind.rawValue) else {
            throw ApusError(.callParametersInvalid, "the event is not one of a client")
        }
        var report = CallReport(kind, by: sender)
        (report.number, report.stage) = (request.code, CallStage(rawValue: request.stage.rawValue) ?? .unspecified)
        // The right to media is checked again when they are requested (right(of:_:)).
        guard kind == .accepted else {
            return ClientCallInfo(id, try await ref(id).ask(report, timeout: try call.timeLeft()))
        }
        let message = CallAccept.with { ($0.call, $0.report) = (id.rawValue, report) }
        let view = try await atOwner(of: id, message, call) { message, _ throws(ApusError) in
            try await accept(message)
        }
        return ClientCallInfo(id, view)
    }

    /// Sends the request to the node of the call's owner. Carries it out here if that is this node, or if its answer is
    /// lost: both requests can be repeated.
    ///
    /// - Parameter here: with true if the owner may have carried it out.
    private func atOwner<M: CallOwnerMessage>(
        of id: CallID, _ message: M, _ call: ClientCall, here: (M, Bool) async throws(ApusError) -> CallLegView
    ) async throws(ApusError) -> CallLegView where M.Reply == CallLegView {
        var message = message
        let left = try call.timeLeft()
        message.leftMs = Int64(left.milliseconds)
        let isLost: Bool
        switch try await entities.askOwner(of: try id.address().shard, message, timeout: left) {
        case .reply(let view): return view
        case .isHere: isLost = false
        case .isLost: isLost = true
        }
        message.leftMs = Int64(try call.timeLeft().milliseconds)
        return try await here(message, isLost)
    }

    /// The number in the session id that the client has chosen; nil if it leaves that to the cluster.
    private static func number(_ request: ClientStartCallRequest) throws(ApusError) -> RequestID? {
        guard !request.id.isEmpty else { return nil }
        let (high, low) = (request.id.prefix(16), request.id.dropFirst(16))
        guard request.id.utf8.count == 32, request.id.allSatisfy({ $0.isASCII && $0.isHexDigit }),
            let high = UInt64(high, radix: 16), let low = UInt64(low, radix: 16)
        else { throw ApusError(.badParameter, "the id of a call has 32 hexadecimal digits") }
        return RequestID(high: high, low: low)
    }

    /// The parties that a request names. The session of an app uses its devices from now on: it ends if a right is
    /// lost.
    private func called(_ request: ClientStartCallRequest, _ call: ClientCall) throws(ApusError) -> [CallParty] {
        guard request.targets.count <= configuration.legsMax else {
            throw ApusError(.callParametersInvalid, "a call has at most \(configuration.legsMax) called parties")
        }
        var parties: [CallParty] = []
        for target in request.targets {
            if call.session.device != nil, target.device.isEmpty {
                parties.append(try Self.account(target.account))
            } else {
                let device = try Self.device(target)
                if call.session.device == nil { try sessions.use(device, in: call.session) }
                parties.append(.device(device))
            }
        }
        if parties.isEmpty, call.session.device != nil {
            parties = [try Self.account(call.session.account.rawValue)]
        }
        guard !parties.isEmpty else { throw ApusError(.callParametersInvalid, "a call has a called party") }
        guard Set(parties).count == parties.count else {
            throw ApusError(.callParametersInvalid, "a party is called twice")
        }
        return parties
    }

    private static func device(_ target: ClientCallParty) throws(ApusError) -> DeviceID {
        guard let device = DeviceID(rawValue: target.device), target.account.isEmpty else {
            throw ApusError(.callParametersInvalid, "a called party is a device, or an account that a device calls")
        }
        return device
    }

    // MARK: - At the node of the owner

    /// Checks that the caller may call the parties, finds their clients, and begins the call.
    func place(_ order: CallOrder) async throws(ApusError) -> CallLegView {
        let deadline = MonotonicTime.now() + .milliseconds(order.leftMs)
        let (id, sender) = (try order.id(), try order.sender())
        for party in order.called { try await checkRight(of: sender.party, toCall: party) }
        if order.again, let view = try await placed(id, by: sender, deadline) { return view }
        var lists: [[CallCallee]] = []
        for party in order.called {
            let isOfGuest = try await isGuest(sender.party, of: party)
            lists.append(
                try await callees(of: party, deadline).map { callee in
                    var callee = callee
                    callee.guest = isOfGuest
                    return callee
                })
        }
        var callees = Self.inTurn(lists, countMax: configuration.legsMax)
        let machine = await machines.machine(of: order.called)
        if let machine, !callees.contains(where: { $0.party == machine.party }) {
            // No client of this party rings, but its machine answers.
            callees =
                callees.prefix(configuration.legsMax - 1) + [.with { ($0.party, $0.absent) = (machine.party, true) }]
        }
        guard !callees.isEmpty else {
            throw ApusError(.targetOffline, "no client of the called parties takes calls")
        }
        var place = CallPlace.with {
            ($0.type, $0.caller, $0.endpoint, $0.session) = (
                order.type, order.caller, order.endpoint, order.session
            )
            ($0.callees, $0.extra, $0.timeoutMs) = (callees, order.extra, order.timeoutMs)
            if let machine { $0.answering = machine }
        }
        // Before parties are claimed for a call that cannot be placed.
        try CallStart(place, id, configuration).check(configuration)
        place.claims = await claimAhead(place, of: id, deadline)
        if place.claims.first?.renewed == true, let view = try await placed(id, by: sender, deadline) { return view }
        var call = EntityCall()
        call.identity = order.endpoint
        return try await ref(id).ask(place, timeout: try deadline.timeLeft(), call: call)
    }

    /// True for a device that calls another account than its own.
    private func isGuest(_ caller: CallParty, of called: CallParty) async throws(ApusError) -> Bool {
        guard caller.kind == .device, called.kind == .account else { return false }
        return try await records.sessions.record(of: DeviceID(unchecked: caller.id))?.account?.rawValue != called.id
    }

    /// - Throws: −2501, 8003, 12004, 20011.
    private func checkRight(of caller: CallParty, toCall called: CallParty) async throws(ApusError) {
        guard caller.kind == .account, called.kind == .device else {
            if let error = try await refusal(of: called, by: caller) { throw error }
            return
        }
        let answer = await sessions.inspect(
            DeviceID(unchecked: called.id), for: AccountID(unchecked: caller.id), control: true)
        do throws(ApusError) {
            _ = try answer.get()
        } catch {
            throw error.code == .targetUnknown ? ApusError(.callRequestFailed, "no such device") : error
        }
    }

    /// The caller's view of a call that an earlier request with the same id has placed; nil if none has. Asked before
    /// the called parties are looked up: their clients may be away by now.
    private func placed(
        _ id: CallID, by sender: CallSender, _ deadline: MonotonicTime
    ) async throws(ApusError) -> CallLegView? {
        do throws(ApusError) {
            // A confirmation of no stage changes nothing.
            return try await ref(id).ask(CallReport(.confirmed, by: sender), timeout: try deadline.timeLeft())
        } catch {
            guard error.code == .callUnknown else { throw error }
            return nil
        }
    }

    /// The first of each list, then the second of each, and so on: no party takes the legs of another.
    private static func inTurn(_ lists: [[CallCallee]], countMax: Int) -> [CallCallee] {
        var callees: [CallCallee] = []
        for place in 0..<(lists.map(\.count).max() ?? 0) {
            callees += lists.filter { $0.count > place }.map { $0[place] }
        }
        return Array(callees.prefix(countMax))
    }

    /// Accepts, unless the account has lost its right to the device since the call began, or the device was disabled.
    /// The leg then leaves, which ends the call if it is one of two.
    ///
    /// - Throws: 8003, 20011.
    func accept(_ message: CallAccept) async throws(ApusError) -> CallLegView {
        let deadline = MonotonicTime.now() + .milliseconds(message.leftMs)
        guard let id = CallID(rawValue: message.call) else { throw ApusError(.callUnknown) }
        let (call, report) = (try ref(id), message.report)
        let parties = try await call.ask(
            CallPeek.with { ($0.party, $0.endpoint) = (report.party, report.endpoint) },
            timeout: try deadline.timeLeft())
        var found: ApusError? = ApusError(.illegalRelation)
        if report.party == parties.caller {
            for called in parties.called where found != nil {
                found = try await refusal(of: called, by: report.party)
            }
        } else {
            found = try await refusal(of: report.party, by: parties.caller)
        }
        guard let error = found else { return try await call.ask(report, timeout: try deadline.timeLeft()) }
        var leave = report
        leave.kind = .hungUp
        _ = try? await call.ask(leave, timeout: try deadline.timeLeft())
        throw error
    }
}

/// A request that the node of a call's owner carries out.
private protocol CallOwnerMessage: NodeMessage {
    /// Until the request ends.
    var leftMs: Int64 { get set }
}

extension CallOrder: CallOwnerMessage {
    /// - Throws: 10001 without a called party.
    fileprivate func id() throws(ApusError) -> CallID {
        guard let first = called.first else { throw ApusError(.malformed, "a call has a called party") }
        return CallID(shard: first.address.shard, RequestID(high: high, low: low))
    }

    /// - Throws: 10001 if the caller is no client.
    fileprivate func sender() throws(ApusError) -> CallSender {
        guard let endpoint = AccessID(rawValue: endpoint) else {
            throw ApusError(.malformed, "a call has a caller")
        }
        return CallSender(caller, endpoint, session: session)
    }
}

extension CallAccept: CallOwnerMessage {}

extension CallReport {
    fileprivate init(_ kind: CallEventKind, by sender: CallSender) {
        self.init()
        (party, endpoint, session) = (sender.party, sender.endpoint.rawValue, sender.session)
        self.kind = kind
    }
}
