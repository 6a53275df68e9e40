import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

/// One call without a cluster: its events, and what it causes.
struct CallDriver {
    static let caller = CallSender(.account(AccountID(unchecked: "alice")), AccessID(unchecked: "alice-phone"))
    static let id = CallID(unchecked: "call-1")

    var machine: CallStateMachine
    var now: Int64 = 1_000_000
    /// What the last event has caused.
    var actions: [CallAction] = []
    var senders = [Self.caller]

    /// A called party: a device.
    static func bell(_ number: Int) -> CallTarget {
        CallTarget(.device(DeviceID(unchecked: "bell-\(number)")), AccessID(unchecked: "bell-\(number)"))
    }

    /// An app of a called account.
    static func app(_ number: Int, of account: String = "bob", hasPush: Bool = true) -> CallTarget {
        CallTarget(
            .account(AccountID(unchecked: account)), AccessID(unchecked: "\(account)-\(number)"), hasPush: hasPush)
    }

    static func bells(_ count: Int) -> [CallTarget] { (1...count).map { bell($0) } }

    static func start(
        _ type: CallType = .oneToOne, to targets: [CallTarget] = [bell(1)], timeout: Duration? = nil,
        extra: String = "", answering: CallAnswering? = nil, claims: [CallClaimAnswer] = []
    ) throws -> CallStart {
        CallStart(
            id, type, from: caller, to: targets, timeout: timeout, extra: try CallExtra(Data(extra.utf8)),
            answering: answering, claims: claims)
    }

    /// The answering machine of a party, with messages of 20 seconds.
    static func machine(of party: CallParty, after: Duration = .zero) -> CallAnswering {
        .with { ($0.party, $0.lengthMs, $0.afterMs) = (party, 20_000, Int64(after.milliseconds)) }
    }

    /// A call that waits for its caller's party.
    init(placing start: CallStart, _ configuration: CallConfiguration = CallConfiguration()) throws {
        machine = CallStateMachine(configuration)
        senders += start.targets.map { CallSender($0.party, $0.endpoint) }
        _ = try machine.start(start, at: now, &actions)
    }

    /// A call whose parties are claimed.
    init(
        _ type: CallType = .oneToOne, to targets: [CallTarget] = [bell(1)], extra: String = "",
        _ configuration: CallConfiguration = CallConfiguration()
    ) throws {
        try self.init(placing: Self.start(type, to: targets, extra: extra), configuration)
        for claim in machine.state.claims { happen(.partyClaimed(claim.party)) }
    }

    /// An accepted call.
    static func accepted(by leg: Int = 1, extra: String = "") throws -> CallDriver {
        var call = try CallDriver(extra: extra)
        try call.send(.accepted, leg)
        return call
    }

    @discardableResult
    mutating func send(_ event: CallEvent, _ leg: Int, session: UInt64? = nil) throws -> CallView {
        var sender = senders[leg]
        if let session { sender.session = session }
        return try send(event, from: sender)
    }

    @discardableResult
    mutating func send(_ event: CallEvent, from sender: CallSender) throws -> CallView {
        var caused: [CallAction] = []
        let view = try machine.handle(event, from: sender, at: now, &caused)
        actions = caused
        return view
    }

    mutating func happen(_ event: CallClusterEvent) {
        actions = []
        machine.handle(event, at: now, &actions)
    }

    /// Time passes, with an event at each time that the machine has asked for.
    mutating func wait(_ duration: Duration) {
        let end = now + Int64(duration.milliseconds)
        var caused: [CallAction] = []
        while let next = machine.nextMs, next <= end {
            now = max(now, next)
            happen(.timeAdvanced)
            caused += actions
        }
        now = end
        happen(.timeAdvanced)
        actions = caused + actions
    }

    /// The owner dies: the next one has the state, and nothing else.
    mutating func restore() throws {
        let bytes: Data = try machine.state.serializedBytes()
        machine = try CallStateMachine(restoring: CallState(serializedBytes: bytes), machine.configuration)
        happen(.restored)
    }

    /// The number that the leg has received; nil while the call goes on for it.
    func number(_ leg: Int) -> Int32? { machine.view(leg).end?.number }

    var numbers: [Int32?] { machine.state.legs.indices.map { number($0) } }
    var phase: CallPhase { machine.state.phase }

    /// The legs that the last event has notified of an end, with their numbers.
    var ends: [Int: Int32] {
        var ends: [Int: Int32] = [:]
        for action in actions {
            switch action {
            case .stopRinging(let leg, let end), .reportEnd(let leg, let end): ends[leg] = end.number
            default: break
            }
        }
        return ends
    }
}

func expectRefused(_ code: ErrorCode, _ body: () throws -> Void, at location: SourceLocation = #_sourceLocation) {
    #expect(throws: ApusError(code), sourceLocation: location) { try body() }
}
