package import ApusCluster
package import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

// Calls and parties at the owners of their shards. Both are replicated: they survive the death of any node.

extension EntityKind {
    package static let calls = Self(rawValue: 8)
    package static let callParties = Self(rawValue: 9)
}

extension CallEntity: EntityContentMessage {}
extension CallPartyEntity: EntityContentMessage {}

extension CallPlace: EntityMessage {
    package typealias Reply = CallLegView
    package static var method: UInt16 { 0x0141 }
    package static var isIdempotent: Bool { true }
}

extension CallReport: EntityMessage {
    package typealias Reply = CallLegView
    package static var method: UInt16 { 0x0142 }
    package static var isIdempotent: Bool { true }
}

extension CallNote: EntityMessage {
    package typealias Reply = CallNoted
    package static var method: UInt16 { 0x0143 }
    package static var isIdempotent: Bool { true }
}

extension CallPeek: EntityMessage {
    package typealias Reply = CallParties
    package static var method: UInt16 { 0x014a }
    package static var isIdempotent: Bool { true }
}

/// A call asks its owner's node to record a message.
extension CallVoiceMessage: NodeMessage {
    package typealias Reply = CallVoiceMessageTaken
    package static var method: UInt16 { 0x004c }
}

/// A node asks itself to write the record of a call that has ended.

extension CallFinished: NodeMessage {
    package typealias Reply = CallFinishedTaken
    package static var method: UInt16 { 0x0048 }
}

extension CallID {
    /// A call of this shard. The id cannot be guessed without the number.
    package init(shard: ShardID, _ number: RequestID) {
        let shard = String(shard.rawValue, radix: 16)
        let digits = [number.high, number.low].map { half in
            let text = String(half, radix: 16)
            return String(repeating: "0", count: 16 - text.utf8.count) + text
        }
        self.init(unchecked: String(repeating: "0", count: 3 - shard.utf8.count) + shard + "-" + digits.joined())
    }

    /// The entity of the call.
    ///
    /// - Throws: −2508 if no call has such an id.
    package func address() throws(ApusError) -> EntityAddress {
        let parts = rawValue.split(separator: "-", omittingEmptySubsequences: false)
        guard parts.count == 2, parts[0].utf8.count == 3, parts[1].utf8.count == 32,
            let shard = UInt16(parts[0], radix: 16), shard < ShardID.count
        else { throw ApusError(.callUnknown) }
        return EntityAddress(kind: .calls, key: rawValue, shard: ShardID(shard))
    }
}

/// The kind of calls; the key is the call's id, and the shard that of the first called party.
package struct CallKind {
    private static let reminder = "advance"

    private let configuration: CallConfiguration
    private let node: NodeName

    /// - Parameter node: this node. It writes the record.
    package init(configuration: CallConfiguration, node: NodeName) {
        (self.configuration, self.node) = (configuration, node)
    }

    private typealias Body<Reply> = (inout CallStateMachine, Int64, inout [CallAction]) throws(ApusError) -> Reply

    package var definition: EntityDefinition<CallEntity> {
        var definition = EntityDefinition<CallEntity>(.calls, name: "calls", durability: .replicated)
        definition.on(CallPlace.self) { call, message, scope throws(ApusError) in
            let start = try CallStart(message, CallID(unchecked: scope.address.key), configuration)
            return try change(&call, &scope) { machine, now, actions throws(ApusError) in
                CallLegView(try machine.start(start, at: now, &actions), start.type)
            }
        }
        definition.on(CallReport.self) { call, message, scope throws(ApusError) in
            let event = try CallEvent(message)
            let sender = CallSender(
                message.party, AccessID(unchecked: message.endpoint), session: message.session)
            return try change(&call, &scope) { machine, now, actions throws(ApusError) in
                let view = try machine.handle(event, from: sender, at: now, &actions)
                return CallLegView(view, machine.state.type)
            }
        }
        definition.on(CallNote.self) { call, message, scope throws(ApusError) in
            let event: CallClusterEvent =
                switch message.kind {
                case .claimed: .partyClaimed(message.party)
                case .refused: message.crossed ? .partyCrossed(message.party) : .partyRefused(message.party)
                case .released: .partyReleased(message.party)
                case .recordWritten: .recordWritten
                case .messageStored: .messageStored
                case .messageFull: .messageFull
                case .unspecified, .UNRECOGNIZED: .timeAdvanced
                }
            try change(&call, &scope) { machine, now, actions throws(ApusError) in
                machine.handle(event, at: now, &actions)
            }
            return CallNoted()
        }
        definition.onReading(CallPeek.self) { call, message, _ throws(ApusError) in
            let state = call.state
            guard state.phase != .unspecified else { throw ApusError(.callUnknown) }
            let isParty = state.claims.contains { $0.party == message.party }
            guard isParty else { throw ApusError(.illegalRelation) }
            return CallParties(state, for: message)
        }
        definition.onReminder { call, _, scope throws(ApusError) in
            try change(&call, &scope) { machine, now, actions throws(ApusError) in
                machine.handle(.timeAdvanced, at: now, &actions)
            }
            if call == CallEntity() { scope.isDone = true }
        }
        return definition
    }

    /// Changes the call, sends what this causes, and sets the reminder for what follows without a message.
    private func change<Reply>(
        _ call: inout CallEntity, _ scope: inout EntityScope, _ body: Body<Reply>
    ) throws(ApusError) -> Reply {
        let now = scope.wallMilliseconds
        var machine = try CallStateMachine(restoring: call.state, configuration)
        var actions: [CallAction] = []
        let isRestored = machine.state.phase != .unspecified && call.epoch != scope.epoch
        if isRestored { machine.handle(.restored, at: now, &actions) }
        let reply = try body(&machine, now, &actions)
        for action in actions { try perform(action, machine.state, &scope, isRestored: isRestored) }
        scope.mayBeLost = !isRestored && actions.isEmpty && machine.state.hasOnlyConfirmed(since: call.state)
        call = CallEntity()
        guard machine.state.phase != .unspecified else { return reply }
        (call.state, call.epoch) = (machine.state, scope.epoch)
        if let next = machine.nextMs, !scope.reminders.contains(where: { $0.due > now && $0.due <= next }) {
            try scope.remind(Self.reminder, at: next)
        }
        return reply
    }

    private func perform(
        _ action: CallAction, _ state: CallState, _ scope: inout EntityScope, isRestored: Bool
    ) throws(ApusError) {
        switch action {
        case .claim(let party, let claim):
            let request = CallClaimRequest.with {
                ($0.claim, $0.endpoints) = (claim, Self.endpoints(of: party, in: state))
            }
            try scope.tell(CallPartyEntity.self, party.address, request)
        case .release(let party):
            try scope.tell(CallPartyEntity.self, party.address, CallRelease.with { $0.call = scope.address.key })
        case .ring(let leg):
            try Self.notify(leg, of: state, .ring, &scope)
            // Once more at the next owner: the node of this one may die first.
            if state.legs[leg].byPush, state.legs[leg].sends == 1 || isRestored { try push(leg, of: state, &scope) }
        case .reportRinging: try Self.notify(0, of: state, .ring, &scope)
        case .reportAccepted(let leg, _): try Self.notify(leg, of: state, .accepted, &scope)
        case .stopRinging(let leg, let end), .reportEnd(let leg, let end):
            try Self.notify(leg, of: state, .ended, &scope, end: end)
            if state.legs[leg].byPush, state.legs[leg].sends == 1 {
                // An app that has taken the call is notified of the end over its session.
                let isPart = if case .reportEnd = action { true } else { false }
                let hasTaken = isPart || (state.legs[leg].session != 0 && state.legs[leg].lostMs == 0)
                try push(leg, of: state, &scope, end: hasTaken ? .taken : .cancelled)
            }
        case .releaseChannels: try Self.notifyMediaEnded(of: state, &scope)
        case .writeRecord: try scope.tell(node, CallFinished.with { $0.state = state })
        case .recordMessage(let isOver):
            try scope.tell(
                node,
                CallVoiceMessage.with {
                    ($0.call, $0.caller, $0.answering) = (state.id, state.party(of: 0), state.answering)
                    ($0.startedMs, $0.over) = (state.messageMs, isOver)
                })
        }
    }

    /// The clients of a claimed party that take part, or may. The party's report that one of them is away may have been
    /// lost with a former owner.
    private static func endpoints(of party: CallParty, in state: CallState) -> [String] {
        guard state.claims.contains(where: { $0.party == party && $0.status == .claimed }) else { return [] }
        let legs = state.legs.indices.filter { state.legs[$0].status != .ended && state.party(of: $0) == party }
        return legs.map { state.legs[$0].endpoint }
    }

    /// How a call ends for an app that a push reaches.
    private enum PushEnd {
        case taken, cancelled
    }

    /// Asks the own node to notify an app by push.
    private func push(
        _ leg: Int, of state: CallState, _ scope: inout EntityScope, end: PushEnd? = nil
    ) throws(ApusError) {
        let message = CallPush.with {
            ($0.over, $0.cancel) = (end != nil, end == .cancelled)
            ($0.call, $0.type, $0.extra) = (state.id, state.type, state.extra)
            ($0.caller, $0.party) = (state.party(of: 0), state.party(of: leg))
            ($0.endpoint, $0.startedMs, $0.ringEndMs) = (state.legs[leg].endpoint, state.startedMs, state.ringEndMs)
        }
        try scope.tell(node, message)
    }

    /// Ends the media of both sides at the nodes of their connections.
    private static func notifyMediaEnded(of state: CallState, _ scope: inout EntityScope) throws(ApusError) {
        for leg in Set([0, Int(state.winner)]).sorted() {
            let forward = CallForward.with {
                $0.endpoint = state.legs[leg].endpoint
                $0.notice = .with { ($0.call, $0.mediaEnded) = (state.id, true) }
            }
            try scope.tell(CallPartyEntity.self, state.party(of: leg).address, forward)
        }
    }

    /// Sends a leg a notice, by way of its party.
    private static func notify(
        _ leg: Int, of state: CallState, _ stage: CallStage, _ scope: inout EntityScope, end: CallLegEnd? = nil
    ) throws(ApusError) {
        let peer = leg == 0 ? Int(state.winner) : 0
        let notice = CallNotice.with {
            ($0.call, $0.stage, $0.type, $0.isCaller) = (state.id, stage, state.type, leg == 0)
            if leg != peer {
                $0.peer = state.party(of: peer)
            } else if stage == .accepted {
                ($0.peer, $0.message) = (state.answering.party, true)
            }
            if stage == .ring, leg != 0 { ($0.extra, $0.ringEndMs) = (state.extra, state.ringEndMs) }
            if let end { ($0.reason, $0.number) = (end.reason, end.number) }
        }
        try scope.tell(
            CallPartyEntity.self, state.party(of: leg).address,
            CallForward.with { ($0.endpoint, $0.notice) = (state.legs[leg].endpoint, notice) })
    }
}

extension CallParties {
    /// What a leg that takes part receives.
    fileprivate init(_ state: CallState, for leg: CallPeek) {
        self.init()
        (caller, called) = (state.party(of: 0), state.claims.dropFirst().map(\.party))
        over = state.phase == .ended && state.releaseChannels.status != .wanted
        if state.messageMs != 0 {
            winner = state.answering.party
            if !over, state.legs[0].endpoint == leg.endpoint, caller == leg.party { side = .caller }
            return
        }
        guard state.winner != 0 else { return }
        winner = state.party(of: Int(state.winner))
        guard !over else { return }
        let index = state.legs.indices.first { index in
            state.legs[index].endpoint == leg.endpoint && state.party(of: index) == leg.party
        }
        if index == 0 { side = .caller } else if index == Int(state.winner) { side = .winner }
    }
}

extension CallParty {
    /// The longest name of an account that calls: one byte less than an account may have.
    static let accountByteCountMax = EntityAddress.keyByteCountMax - 1

    /// The entity of the party. A device and an account may have the same name.
    package var address: EntityAddress {
        // An account whose name leaves no room for the prefix does not call, so its name is cut here only where a node
        // has sent it that should not have.
        let key = kind == .device ? id : "@" + id.prefix(Self.accountByteCountMax)
        return EntityAddress(kind: .callParties, key: key, shard: ShardID(key: id))
    }
}

extension CallStart {
    /// - Throws: −2500 if what the caller has sent is too long, or no JSON object.
    init(_ message: CallPlace, _ id: CallID, _ configuration: CallConfiguration) throws(ApusError) {
        self.init(
            id, message.type,
            from: CallSender(message.caller, AccessID(unchecked: message.endpoint), session: message.session),
            to: message.callees.map { callee in
                CallTarget(
                    callee.party, AccessID(unchecked: callee.absent ? CallTarget.absentEndpoint : callee.endpoint),
                    hasPush: callee.byPush, isAbsent: callee.absent, isOfGuest: callee.guest)
            },
            timeout: message.timeoutMs == 0 ? nil : .milliseconds(message.timeoutMs),
            extra: try CallExtra(message.extra, configuration),
            answering: message.hasAnswering ? message.answering : nil, claims: message.claims)
    }
}

extension CallEvent {
    /// Throws 10001 for an event of a later release.
    fileprivate init(_ message: CallReport) throws(ApusError) {
        switch message.kind {
        case .joined: self = .joined
        case .rang: self = .rang
        case .accepted: self = .accepted
        case .rejected: self = .rejected
        case .busy: self = .wasBusy
        case .cancelled: self = .cancelled
        case .hungUp: self = .hungUp
        case .connected: self = .connected
        case .failed: self = .failed(message.number)
        case .confirmed: self = .confirmed(message.stage)
        case .sessionStarted: self = .sessionStarted
        case .sessionEnded: self = .sessionEnded
        case .unspecified, .UNRECOGNIZED: throw ApusError(.malformed, "the event of a call is not known here")
        }
    }
}

extension CallLegView {
    fileprivate init(_ view: CallView, _ type: CallType) {
        self.init()
        (leg, self.type) = (UInt32(view.leg), type)
        (answered, accepted, connected) = (view.flags.answered, view.flags.accepted, view.flags.connected)
        ended = view.flags.end
        if let end = view.end { (reason, number) = (end.reason, end.number) }
    }
}
