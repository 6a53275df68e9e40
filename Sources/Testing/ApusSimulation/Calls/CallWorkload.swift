import ApusCalls
import ApusCluster
import ApusCore
import Foundation
import SwiftProtobuf

/// Calls on the simulated cluster: their handlers, their nodes' part, and what happens to them.
final class CallWorkload: SimulatedService {
    /// The time from the last fault until everything has ended.
    static let settleTimeMax = Duration.seconds(40)
    /// The names of parties whose entities are in the shards of the run.
    private static let names: (devices: [String], accounts: [String]) = {
        func names(_ prefix: String, _ count: Int) -> [String] {
            let all = (0...).lazy.map { "\(prefix)\($0)" }
            let distance = SimulationSettings.shardCount / 8
            return Array(
                all.filter { name in
                    let shard = Int(ShardID(key: name).rawValue)
                    return shard < SimulationSettings.shardCount && shard % distance == 0
                }.prefix(count))
        }
        return (names("device-", 4), names("account-", 3))
    }()

    unowned let world: EntityWorkload
    let mutant: CallServiceMutant
    let configuration: CallConfiguration
    let phones: [SimulatedPhone]
    let parties: [CallParty]
    var calls: [SimulatedPhoneCall] = []
    private(set) var indexes: [String: Int] = [:]
    /// By party, the calls that have claimed it.
    var holders: [CallParty: Set<Int>] = [:]
    /// By party, the epoch of its last message.
    private var partyEpochs: [EntityAddress: Epoch] = [:]
    /// By process.
    private var callKinds: [Int: EntityDefinition<CallEntity>] = [:]
    private var partyKinds: [Int: (revision: UInt64, definition: EntityDefinition<CallPartyEntity>)] = [:]
    /// Claims that arrived when their call had ended. The answer, which makes the call release the party again, may be
    /// lost with an owner; the claim then ends by itself.
    private(set) var lateClaims: Set<String> = []
    /// The party that is called after the faults, and the call.
    var probe = (party: 0, call: Int?.none)
    /// Since when nobody is in a call after the faults.
    var quietSinceMs: Int64?
    /// Calls before this one have ended.
    var overCount = 0
    var reasons: [String: Int] = [:]

    init(_ world: EntityWorkload, mutant: CallServiceMutant) {
        (self.world, self.mutant) = (world, mutant)
        var configuration = CallConfiguration()
        (configuration.ringTime, configuration.ringTimeMin) = (.seconds(3), .seconds(1))
        (configuration.connectTime, configuration.grace) = (.seconds(4), .milliseconds(1500))
        (configuration.claimTime, configuration.durationMax) = (.seconds(9), .seconds(600))
        (configuration.resendAfter, configuration.resendAfterMax) = (.milliseconds(200), .seconds(1))
        (configuration.endedTime, configuration.endedTimeMax) = (.seconds(2), .seconds(18))
        (configuration.recordRetryMax, configuration.keepConnectTime) = (.seconds(1), .seconds(1))
        self.configuration = configuration
        let devices = Self.names.devices.map { name in
            SimulatedPhone(.device(DeviceID(unchecked: name)), AccessID(unchecked: name))
        }
        let apps = Self.names.accounts.enumerated().flatMap { index, name in
            (0..<(index < 2 ? 2 : 1)).map {
                SimulatedPhone(.account(AccountID(unchecked: name)), AccessID(unchecked: "\(name)-app-\($0)"))
            }
        }
        phones = devices + apps
        parties =
            Self.names.devices.map { .device(DeviceID(unchecked: $0)) }
            + Self.names.accounts.map { .account(AccountID(unchecked: $0)) }
    }

    var simulation: ClusterSimulation { world.simulation }
    var wallMilliseconds: Int64 { world.wallMilliseconds }

    func fail(_ sentence: @autoclosure () -> String) { simulation.fail(sentence()) }
    func tell(_ sentence: @autoclosure () -> String) { simulation.tell(sentence()) }

    func later(after delay: Duration, _ body: @escaping () -> Void) {
        simulation.later(.work(SimulationWork(kind: 20, run: body)), after: delay)
    }

    func index(of call: String) -> Int? { indexes[call] }

    func add(_ call: SimulatedPhoneCall) -> Int {
        calls.append(call)
        indexes[call.id.rawValue] = calls.count - 1
        return calls.count - 1
    }

    /// True if an owner of one of these shards reported that changes may be missing.
    func mayHaveLost(_ shards: [ShardID]) -> Bool { shards.contains { world.ledger.lossEpochs[$0] != nil } }

    // MARK: The handlers

    func carryOut(
        _ call: SimulatedCall, _ content: SimulatedContent, _ cell: SimulatedCell, at node: EntityNode
    ) -> SimulatedCell.Machine.Result {
        guard cell.address.kind == .calls else {
            return carryOut(call, content, cell, partyKind(at: node)) { (party: inout CallPartyEntity) in
                let isTakenOver = partyEpochs[cell.address].map { $0 != cell.epoch } ?? false
                partyEpochs[cell.address] = cell.epoch
                if mutant == .forgetsClaims, isTakenOver { party.state = CallPartyState() }
                noteClaim(call)
            }
        }
        return carryOut(call, content, cell, callKind(at: node)) { (entity: inout CallEntity) in
            checkContinued(entity.state, cell, at: node)
            if mutant == .forgetsRestoring { entity.epoch = cell.epoch }
        }
    }

    private func noteClaim(_ call: SimulatedCall) {
        guard case .message(CallClaimRequest.method, let bytes) = call.operation,
            let claim = try? CallClaimRequest(serializedBytes: bytes).claim, let index = index(of: claim.call),
            let state = calls[index].confirmed, state.phase == .ended || state.phase == .unspecified
        else { return }
        lateClaims.insert(claim.call)
    }

    private func carryOut<Content: EntityContentMessage>(
        _ call: SimulatedCall, _ content: SimulatedContent, _ cell: SimulatedCell,
        _ definition: EntityDefinition<Content>, _ alter: (inout Content) -> Void
    ) -> SimulatedCell.Machine.Result {
        var ending = SimulatedEnding(call: call)
        var before = (try? Content(reading: Array(content.value))) ?? Content()
        alter(&before)
        let id = RequestID(using: &simulation.random)
        var trial = EntityTrial(
            before, of: cell.address, epoch: cell.epoch, wallMilliseconds: wallMilliseconds,
            reminders: cell.machine.state.reminders, makeID: { id })
        switch call.operation {
        case .message(let method, let bytes): trial.carryOut(method, bytes, by: definition)
        case .reminded(let reminder): trial.remind(reminder, by: definition)
        case .change, .fail, .remind, .cancelReminder, .tell, .tellReceived:
            fail("\(cell.address) is asked for what no service has")
        }
        let after: [UInt8]
        do throws(ApusError) {
            ending.answer = try trial.answer.get()
            after = try trial.content.encoded()
        } catch {
            ending.error = error
            return SimulatedCell.Machine.Result(content: nil, ending: ending)
        }
        let isCall = cell.address.kind == .calls
        tell("    \(name(of: cell.address)) under \(cell.epoch): \(name(of: call)), sends \(names(of: trial.tellings))")
        ending.content = SimulatedContent.with { $0.value = Data(after) }
        (ending.tellings, ending.isDone, ending.reminders) = (trial.tellings, trial.isDone, trial.changes)
        ending.tellings.removeAll(where: isDropped)
        if mutant == .renewsWithoutClients { ending.tellings = ending.tellings.map(withoutClients) }
        if mutant == .forgetsReminders, isCall { ending.reminders.removeAll(where: \.isSet) }
        return SimulatedCell.Machine.Result(
            content: ending.content, answer: call.id == nil ? nil : ending.answer.map { .reply($0) },
            reminders: ending.reminders, mayBeLost: trial.mayBeLost || (mutant == .losesChanges && isCall),
            ending: ending)
    }

    // MARK: The story

    private func name(of address: EntityAddress) -> String {
        address.kind == .calls ? "call \(index(of: address.key) ?? -1)" : address.key
    }

    private func name(of call: SimulatedCall) -> String {
        switch call.operation {
        case .message(CallReport.method, let bytes):
            let report = try? CallReport(serializedBytes: bytes)
            return report.map { "\($0.kind) of \($0.endpoint)" } ?? "a report"
        case .message(CallNote.method, let bytes):
            let note = try? CallNote(serializedBytes: bytes)
            return note.map { "\($0.kind) by \($0.party.id)" } ?? "a note"
        case .message(let method, _): return "0x" + String(method, radix: 16)
        default: return "reminder"
        }
    }

    private func names(of tellings: [SentMessage]) -> [String] {
        tellings.map { sent in
            let target = if case .entity(let address) = sent.target { name(of: address) } else { "node" }
            return "0x" + String(sent.method, radix: 16) + " to \(target)"
        }
    }

    /// A deliberate error loses this message.
    private func isDropped(_ sent: SentMessage) -> Bool {
        switch mutant {
        case .keepsClaims: return sent.method == CallRelease.method
        case .dropsEnds:
            guard sent.method == CallForward.method, let forward = try? CallForward(serializedBytes: sent.message)
            else { return false }
            return forward.notice.stage == .ended
        default: return false
        }
    }

    private func withoutClients(_ sent: SentMessage) -> SentMessage {
        guard sent.method == CallClaimRequest.method, var request = try? CallClaimRequest(serializedBytes: sent.message)
        else { return sent }
        request.endpoints = []
        var sent = sent
        sent.message = (try? request.serializedBytes()) ?? []
        return sent
    }

    private func callKind(at node: EntityNode) -> EntityDefinition<CallEntity> {
        let index = node.process.index
        if let known = callKinds[index] { return known }
        let new = CallKind(configuration: configuration, node: node.id.name).definition
        callKinds[index] = new
        return new
    }

    private func partyKind(at node: EntityNode) -> EntityDefinition<CallPartyEntity> {
        let (index, map) = (node.process.index, node.process.view)
        if let known = partyKinds[index], known.revision == map.revision { return known.definition }
        let takesDead = mutant == .keepsDeadConnections
        let kind = PartyKind(configuration: configuration) { name, incarnation in
            takesDead
                || map.members.contains {
                    $0.id.name.rawValue == name && $0.id.incarnation == incarnation && $0.state.isAlive
                }
        }
        partyKinds[index] = (map.revision, kind.definition)
        return kind.definition
    }

    func finished(_ ending: SimulatedEnding, of cell: SimulatedCell, at node: EntityNode) {
        if cell.address.kind == .calls, let content = ending.content,
            let call = try? CallEntity(reading: Array(content.value)), let index = index(of: cell.address.key)
        {
            confirmed(call.state, of: index, at: node)
        }
        // Entities leave memory while they have nothing to do, and are read again.
        if simulation.chance(0.05) { node.releaseIfIdle(cell) }
    }

    // MARK: Nodes

    func received(_ message: SentMessage, at node: EntityNode) {
        switch message.method {
        case CallDeliver.method:
            guard let deliver = try? CallDeliver(serializedBytes: message.message) else { return }
            self.deliver(deliver, at: node)
        case CallFinished.method:
            guard let finished = try? CallFinished(serializedBytes: message.message) else { return }
            write(finished.state, at: node)
        case CallPush.method:
            guard let push = try? CallPush(serializedBytes: message.message), !push.over else { return }
            // Whoever sends pushes takes its time. They are lost with the node.
            node.later(21, after: simulation.span(5...300)) { self.pushed(push) }
        default: fail("\(node.id) receives a message of the method \(message.method)")
        }
    }

    private func deliver(_ message: CallDeliver, at node: EntityNode) {
        guard let phone = phones.first(where: { $0.number == message.number && $0.node === node }),
            phone.party == message.party
        else {
            let leave = CallLeave.with { $0.listener = Self.listener(message.number, "", node) }
            return tell(message.party.address, leave, from: node)
        }
        let number = phone.number
        later(after: simulation.span(0...5)) {
            if phone.number == number, phone.node != nil { self.notice(message.notice, to: phone) }
        }
    }

    /// Writes the record of a call, and confirms that.
    private func write(_ state: CallState, at node: EntityNode) {
        guard let index = index(of: state.id) else { return }
        let address = calls[index].address
        let note = CallNote.with { $0.kind = .recordWritten }
        if mutant == .confirmsUnwritten { tell(address, note, from: node) }
        world.records.request(by: node.process) { _ in
            if self.calls[index].written == nil { self.calls[index].written = state }
        } then: { (made: Void?) in
            if made != nil { self.tell(address, note, from: node) }
            node.settle()
        }
    }

    /// A node sends an entity a message.
    func tell<M: EntityMessage>(_ address: EntityAddress, _ message: M, from node: EntityNode) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        node.tell(
            SimulatedCall(entity: address, number: 0, operation: .message(M.method, bytes), origin: .tell))
    }

    static func listener(_ number: UInt64, _ endpoint: String, _ node: EntityNode) -> CallListener {
        .with {
            ($0.node, $0.incarnation) = (node.id.name.rawValue, node.id.incarnation)
            ($0.number, $0.endpoint) = (number, endpoint)
        }
    }
}

extension ReminderChange {
    fileprivate var isSet: Bool {
        if case .set = self { true } else { false }
    }
}
