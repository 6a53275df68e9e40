package import ApusCore
import SwiftProtobuf

extension CallParty {
    package static func device(_ id: DeviceID) -> CallParty { .with { ($0.kind, $0.id) = (.device, id.rawValue) } }

    package static func account(_ id: AccountID) -> CallParty { .with { ($0.kind, $0.id) = (.account, id.rawValue) } }
}

/// A client that sends an event: an authenticated session, and for whom it acts.
package struct CallSender: Sendable, Hashable {
    package var party: CallParty
    package var endpoint: AccessID
    /// Grows with every new session of the endpoint.
    package var session: UInt64

    package init(_ party: CallParty, _ endpoint: AccessID, session: UInt64 = 1) {
        (self.party, self.endpoint, self.session) = (party, endpoint, session)
    }
}

/// A leg to ring: one app of an account, or a device.
package struct CallTarget: Sendable, Hashable {
    package var party: CallParty
    package var endpoint: AccessID
    /// A push reaches it without a session, so the end of its session does not remove it.
    package var hasPush: Bool
    /// It stands for a party that has no client, and can only be answered by its machine.
    package var isAbsent: Bool
    /// Its party is an account, and the caller a device of another one.
    package var isOfGuest: Bool
    /// The endpoint of such a leg.
    static let absentEndpoint = "absent"

    package init(
        _ party: CallParty, _ endpoint: AccessID, hasPush: Bool = false, isAbsent: Bool = false, isOfGuest: Bool = false
    ) {
        (self.party, self.endpoint, self.hasPush, self.isAbsent) = (party, endpoint, hasPush, isAbsent)
        self.isOfGuest = isOfGuest
    }
}

/// A request to call (CALL-6). The service has resolved the targets and has checked that the caller may call them.
package struct CallStart: Sendable, Hashable {
    package var id: CallID
    package var type: CallType
    package var caller: CallSender
    package var targets: [CallTarget]
    /// The time-out until a leg accepts; nil for ``CallConfiguration/ringTime``.
    package var timeout: Duration?
    package var extra: CallExtra
    /// The answering machine of a called party, if one has it.
    package var answering: CallAnswering?
    /// The answers to claims that were made before the call is placed, the caller's first. The call makes all others.
    package var claims: [CallClaimAnswer]

    package init(
        _ id: CallID, _ type: CallType, from caller: CallSender, to targets: [CallTarget], timeout: Duration? = nil,
        extra: CallExtra, answering: CallAnswering? = nil, claims: [CallClaimAnswer] = []
    ) {
        (self.id, self.type, self.caller, self.targets) = (id, type, caller, targets)
        (self.timeout, self.extra, self.answering, self.claims) = (timeout, extra, answering, claims)
    }

    /// - Throws: −2500 if a parameter is out of range: the type, the number of legs or of parties, an endpoint or the
    ///   caller's party among the targets twice, the time-out.
    package func check(_ configuration: CallConfiguration) throws(ApusError) {
        func fail(_ message: String) throws(ApusError) -> Never { throw ApusError(.callParametersInvalid, message) }
        guard type == .oneToOne || type == .oneToMany || type == .oneToManySpecial else {
            try fail("the type of a call is 1, 2 or 3")
        }
        guard (1...max(1, configuration.legsMax)).contains(targets.count) else {
            try fail("a call has 1 to \(configuration.legsMax) called legs")
        }
        guard targets.allSatisfy({ $0.party.isValid }), caller.party.isValid else {
            try fail("a party is a device or an account")
        }
        guard !targets.contains(where: { $0.party == caller.party }) else { try fail("a party cannot call itself") }
        guard answering.map({ machine in targets.contains { $0.party == machine.party } }) ?? true else {
            try fail("an answering machine is that of a called party")
        }
        guard type != .oneToOne || targets.allSatisfy({ $0.party == targets[0].party }) else {
            try fail("a call of type 1 has one called party")
        }
        for (index, target) in targets.enumerated() {
            let isRepeated = targets[..<index].contains { ($0.party, $0.endpoint) == (target.party, target.endpoint) }
            if isRepeated { try fail("a leg is called twice") }
        }
        if let timeout {
            guard (configuration.ringTimeMin...configuration.ringTimeMax).contains(timeout) else {
                try fail(
                    "the time-out is \(configuration.ringTimeMin.components.seconds) to "
                        + "\(configuration.ringTimeMax.components.seconds) seconds")
            }
        }
    }
}

extension CallState {
    /// The call was placed by this request. The legs of a party may have changed when the request is repeated.
    func isStarted(by start: CallStart, _ configuration: CallConfiguration) -> Bool {
        let parties = claims.dropFirst().map(\.party)
        let timeout = CallStateMachine.time(startedMs, plus: start.timeout ?? configuration.ringTime)
        return (id, type, ringEndMs) == (start.id.rawValue, start.type, timeout)
            // A call that has ended keeps none.
            && (extra == start.extra.bytes || phase == .ended)
            && claims.first?.party == start.caller.party && legs.first?.endpoint == start.caller.endpoint.rawValue
            && start.targets.allSatisfy { parties.contains($0.party) }
            && parties.allSatisfy { party in start.targets.contains { $0.party == party } }
    }
}

extension CallParty {
    /// True for a device or an account that can call and be called.
    var isValid: Bool {
        switch kind {
        case .device: DeviceID(rawValue: id) != nil
        case .account: AccountID(rawValue: id) != nil && id.utf8.count <= Self.accountByteCountMax
        case .unspecified, .UNRECOGNIZED: false
        }
    }
}
