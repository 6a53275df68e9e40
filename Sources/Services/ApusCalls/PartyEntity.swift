package import ApusCluster
package import ApusCore
import ApusWire
import SwiftProtobuf

extension CallListen: EntityMessage {
    package typealias Reply = CallListening
    package static var method: UInt16 { 0x0144 }
    package static var isIdempotent: Bool { true }
}

extension CallLeave: EntityMessage {
    package typealias Reply = CallLeft
    package static var method: UInt16 { 0x0145 }
    package static var isIdempotent: Bool { true }
}

extension CallClaimRequest: EntityMessage {
    package typealias Reply = CallClaimTaken
    package static var method: UInt16 { 0x0146 }
    package static var isIdempotent: Bool { true }
}

extension CallClaimAhead: EntityMessage {
    package typealias Reply = CallClaimAnswer
    package static var method: UInt16 { 0x014b }
    package static var isIdempotent: Bool { true }
}

extension CallRelease: EntityMessage {
    package typealias Reply = CallReleased
    package static var method: UInt16 { 0x0147 }
    package static var isIdempotent: Bool { true }
}

extension CallForward: EntityMessage {
    package typealias Reply = CallForwarded
    package static var method: UInt16 { 0x0148 }
    package static var isIdempotent: Bool { true }
}

extension CallReach: EntityMessage {
    package typealias Reply = CallReachable
    package static var method: UInt16 { 0x0149 }
    package static var isIdempotent: Bool { true }
}

/// The owner of a party sends a notice to the node of a connection.
extension CallDeliver: NodeMessage {
    package typealias Reply = CallDelivered
    package static var method: UInt16 { 0x0047 }
}

/// The kind of parties: the call that a party is on, and the connections that take its calls. The key is the name of
/// the device, or `@` and that of the account.
package struct PartyKind {
    private static let reminder = "advance"
    /// The most clients that are looked at for a renewal.
    private static let endpointsMax = 32

    private let configuration: CallConfiguration
    private let isAlive: @Sendable (String, UInt64) -> Bool

    /// - Parameter isAlive: true for a node that has not died, by its name and incarnation.
    package init(configuration: CallConfiguration, isAlive: @escaping @Sendable (String, UInt64) -> Bool) {
        (self.configuration, self.isAlive) = (configuration, isAlive)
    }

    package var definition: EntityDefinition<CallPartyEntity> {
        var definition = EntityDefinition<CallPartyEntity>(
            .callParties, name: "parties of calls", durability: .replicated)
        definition.on(CallListen.self) { party, message, scope throws(ApusError) in
            try listen(message.listener, &party, &scope)
        }
        definition.on(CallLeave.self) { party, message, scope throws(ApusError) in
            try remove(&party, &scope) { $0.isConnection(message.listener) }
            return CallLeft()
        }
        definition.on(CallClaimRequest.self) { party, message, scope throws(ApusError) in
            try claim(message, &party, &scope)
            return CallClaimTaken()
        }
        definition.on(CallClaimAhead.self) { party, message, scope throws(ApusError) in
            let isRenewed = party.state.claim.call == message.claim.call
            let answer = try claim(message.claim, &party, &scope)
            return .with {
                $0.party = Self.party(scope.address)
                switch answer {
                case .granted: ($0.granted, $0.renewed) = (true, isRenewed)
                case .grantedInsteadOf: $0.granted = true
                case .refused: break
                case .crossed: $0.crossed = true
                }
            }
        }
        definition.on(CallRelease.self) { party, message, scope throws(ApusError) in
            guard let id = CallID(rawValue: message.call) else { throw ApusError(.malformed) }
            var machine = try PartyStateMachine(restoring: party.state, configuration)
            machine.release(id, at: scope.wallMilliseconds)
            party.state = machine.state
            try answer(.released, to: id, &scope)
            return CallReleased()
        }
        definition.on(CallForward.self) { party, message, scope throws(ApusError) in
            try forward(message, &party, &scope)
            return CallForwarded()
        }
        definition.onReading(CallReach.self) { party, _, _ throws(ApusError) in
            let alive = party.listeners.filter { isAlive($0.node, $0.incarnation) }
            return .with { $0.endpoints = Set(alive.map(\.endpoint)).sorted() }
        }
        definition.onReminder { party, _, scope throws(ApusError) in
            var machine = try PartyStateMachine(restoring: party.state, configuration)
            machine.advance(at: scope.wallMilliseconds)
            party.state = machine.state
            if let next = machine.nextMs { try scope.remind(Self.reminder, at: next) }
            guard party.listeners.isEmpty, machine.nextMs == nil else { return }
            // No connection takes calls. What remains is the id of the last call, which has released the party.
            party = CallPartyEntity()
            scope.isDone = true
        }
        return definition
    }

    private func listen(
        _ listener: CallListener, _ party: inout CallPartyEntity, _ scope: inout EntityScope
    ) throws(ApusError) -> CallListening {
        if let known = party.listeners.first(where: { $0.isConnection(listener) }) {
            return .with { $0.session = known.session }
        }
        // Those of a node that has died must not take the places of its clients that return.
        try remove(&party, &scope) { !isAlive($0.node, $0.incarnation) }
        try party.makeRoom(for: listener)
        party.session = max(party.session + 1, UInt64(clamping: scope.wallMilliseconds))
        var new = listener
        new.session = party.session
        party.listeners.append(new)
        // The end of the last call may have come while the client was away.
        let machine = try PartyStateMachine(restoring: party.state, configuration)
        for call in machine.recentCalls(at: scope.wallMilliseconds) {
            try report(.sessionStarted, new, to: call, &scope)
        }
        return .with { $0.session = new.session }
    }

    /// Removes connections. The call that the party is on is notified of endpoints without a connection.
    private func remove(
        _ party: inout CallPartyEntity, _ scope: inout EntityScope, where isGone: (CallListener) -> Bool
    ) throws(ApusError) {
        let gone = party.listeners.filter(isGone)
        guard !gone.isEmpty else { return }
        party.listeners.removeAll(where: isGone)
        for listener in gone where !party.listeners.contains(where: { $0.endpoint == listener.endpoint }) {
            guard let id = CallID(rawValue: party.state.claim.call) else { continue }
            try report(.sessionEnded, listener, to: id, &scope)
        }
        // A party that has not been on a call lately takes no memory once its last connection has ended.
        if party.listeners.isEmpty, party.state == CallPartyState() { party = CallPartyEntity() }
    }

    private func claim(
        _ message: CallClaimRequest, _ party: inout CallPartyEntity, _ scope: inout EntityScope
    ) throws(ApusError) {
        let id = CallID(unchecked: message.claim.call)
        let answer = try claim(message.claim, &party, &scope)
        switch answer {
        case .granted, .grantedInsteadOf: try self.answer(.claimed, to: id, &scope)
        case .refused: try self.answer(.refused, to: id, &scope)
        case .crossed: try self.answer(.refused, to: id, isCrossed: true, &scope)
        }
        guard answer == .granted else { return }
        for endpoint in message.endpoints.prefix(Self.endpointsMax)
        where !party.listeners.contains(where: { $0.endpoint == endpoint }) {
            try reportAway(endpoint, party, to: id, &scope)
        }
    }

    /// Decides on a claim, and notifies the call that loses the party.
    private func claim(
        _ claim: CallPartyClaim, _ party: inout CallPartyEntity, _ scope: inout EntityScope
    ) throws(ApusError) -> PartyStateMachine.Answer {
        var machine = try PartyStateMachine(restoring: party.state, configuration)
        let answer = try machine.claim(claim, at: scope.wallMilliseconds)
        party.state = machine.state
        if case .grantedInsteadOf(let other) = answer { try self.answer(.refused, to: other, &scope) }
        if let next = machine.nextMs, !scope.reminders.contains(where: { $0.due <= next }) {
            try scope.remind(Self.reminder, at: next)
        }
        // Renewals arrive during a call, so the death of a node is noticed without a message about it.
        try remove(&party, &scope) { !isAlive($0.node, $0.incarnation) }
        return answer
    }

    private func forward(
        _ message: CallForward, _ party: inout CallPartyEntity, _ scope: inout EntityScope
    ) throws(ApusError) {
        try remove(&party, &scope) { !isAlive($0.node, $0.incarnation) }
        let own = Self.party(scope.address)
        let listeners = party.listeners.filter { $0.endpoint == message.endpoint }
        for listener in listeners {
            try scope.tell(
                NodeName(unchecked: listener.node),
                CallDeliver.with {
                    ($0.party, $0.number, $0.notice) = (own, listener.number, message.notice)
                })
        }
        guard listeners.isEmpty, let id = CallID(rawValue: message.notice.call) else { return }
        try reportAway(message.endpoint, party, to: id, &scope)
    }

    /// Notifies the call of a client that has no connection. The call may know that already.
    private func reportAway(
        _ endpoint: String, _ party: CallPartyEntity, to call: CallID, _ scope: inout EntityScope
    ) throws(ApusError) {
        let away = CallListener.with { ($0.endpoint, $0.session) = (endpoint, party.session) }
        try report(.sessionEnded, away, to: call, &scope)
    }

    private func report(
        _ kind: CallEventKind, _ listener: CallListener, to call: CallID, _ scope: inout EntityScope
    ) throws(ApusError) {
        guard let address = try? call.address() else { return }
        let own = Self.party(scope.address)
        try scope.tell(
            CallEntity.self, address,
            CallReport.with {
                ($0.party, $0.endpoint, $0.session, $0.kind) = (own, listener.endpoint, listener.session, kind)
            })
    }

    private func answer(
        _ kind: CallNoteKind, to call: CallID, isCrossed: Bool = false, _ scope: inout EntityScope
    ) throws(ApusError) {
        guard let address = try? call.address() else { return }
        let own = Self.party(scope.address)
        try scope.tell(
            CallEntity.self, address, CallNote.with { ($0.kind, $0.party, $0.crossed) = (kind, own, isCrossed) })
    }

    private static func party(_ address: EntityAddress) -> CallParty {
        address.key.hasPrefix("@")
            ? .account(AccountID(unchecked: String(address.key.dropFirst())))
            : .device(DeviceID(unchecked: address.key))
    }
}

extension CallListener {
    fileprivate func isConnection(_ other: CallListener) -> Bool {
        (node, incarnation, number) == (other.node, other.incarnation, other.number)
    }
}

extension CallPartyEntity {
    /// The most connections of a party.
    package static let listenersMax = 32

    /// If the party has as many connections as it may have, an earlier one of the same client gives way to a new one.
    ///
    /// - Throws: 10007 if no connection can give way.
    package mutating func makeRoom(for listener: CallListener) throws(ApusError) {
        guard listeners.count >= Self.listenersMax else { return }
        guard let earlier = listeners.firstIndex(where: { $0.endpoint == listener.endpoint }) else {
            throw ApusError(.overloaded, "\(Self.listenersMax) clients of the account take calls already")
        }
        listeners.remove(at: earlier)
    }
}
