package import ApusCluster
package import ApusCore
package import ApusWire
import Foundation
package import Logging
import SwiftProtobuf

/// A device or an app at its shard's owner: the authoritative state of its session (D6).
/// Isolation: an actor. ``PresenceStateMachine`` decides, and the actor carries out its actions. Its messages are those
/// of `proto/apus/session.proto`.
package actor IdentityActor {
    let address: EntityAddress
    private let epoch: Epoch
    private let context: IdentityContext
    private let log: Logger
    private var machine: PresenceStateMachine
    /// What was written of the machine's memory, or read.
    private var written = PresenceStateMachine.Memory()
    /// The device's record, once it was read; nil for apps and for unbound devices.
    private var record: DeviceRecord?
    private var isRecordRead = false
    /// The number of times that the accounts of the device were changed here.
    private var changeCount = 0
    private var isChanging = false
    /// Until then the record is read for each message; nil if every change of it has ended with a known outcome.
    private var doubtUntil: MonotonicTime?
    /// An alarm is set for the end of that time.
    private var isDoubtTimed = false
    /// True if the registry may release the actor, as it was said last.
    private var isIdle = false
    /// A lost right is kept so much longer than grants are valid: nodes poll, and their clocks differ.
    private static let keepSecondsMore: Int64 = 60
    /// A change whose outcome is unknown is carried out in this time, or not at all.
    private static let doubtTime = Duration.seconds(30)
    /// Errors that say that a change of the accounts was not carried out.
    private static let refusals: [ErrorCode] = [
        .targetUnknown, .illegalRelation, .boundToThisUser, .boundToOtherUser, .otherCustomer, .deviceDisabled,
        .overloaded, .versionConflict,
    ]
    /// True once the memory of the identity's clients was read.
    private var isMemoryRead = false
    /// Places whose registration or subscription waits for the records; bounded by the messages in progress.
    private var arrivals: [UInt64: SessionPlace] = [:]
    private var lastArrival: UInt64 = 0

    package init(address: EntityAddress, epoch: Epoch, context: IdentityContext, log: Logger) {
        self.address = address
        self.epoch = epoch
        self.context = context
        self.log = log
        machine = PresenceStateMachine(
            configuration: context.configuration.presence, epoch: epoch, now: .now(), wallSeconds: wallSeconds())
    }

    /// Registers a session's place. Throws 8023 if the device is bound to another account, 8024 if the account is not
    /// of the device's customer, 20011 if the device is disabled, 12001 if its token was issued before it was unbound
    /// or transferred, 10006 if the place was gone before the records were read.
    package func register(_ message: SessionRegister) async throws(ApusError) -> SessionRegistered {
        defer { handled(isKept: false) }
        let place = try SessionPlace(message.place)
        let arrival = arrives(place)
        defer { arrivals[arrival] = nil }
        if address.kind == .device { try await bind(to: message.account, issued: message.issuedS) }
        await readMemory()
        try checkStillHere(arrival)
        // It may have been disabled meanwhile.
        try record?.checkEnabled()
        var order: SessionOrder?
        if message.hasOrder {
            order = SessionOrder(message.order)
        } else if message.again {
            // Admitted by a node that does not support orders: below every order that an owner assigned.
            order = SessionOrder(epoch: 0, sequence: min(UInt64(clamping: message.sinceMs), WireNumber.sequenceMax))
        }
        let (given, actions) = machine.register(
            PresenceStateMachine.Registration(
                place: place, instance: message.instance, order: order, isAsleep: message.asleep),
            now: .now(), wallSeconds: wallSeconds())
        run(actions)
        return SessionRegistered.with {
            $0.superseded = given == nil
            if let given { $0.order = given.message }
        }
    }

    /// Notes that a session ended, or that its socket broke.
    package func unregister(_ message: SessionUnregister) async throws(ApusError) -> SessionUnregistered {
        defer { handled(isKept: false) }
        let place = try SessionPlace(message.place)
        leave { $0 == place }
        run(
            machine.unregister(
                place, isResumable: message.resumable, now: .now(), wallSeconds: wallSeconds()))
        return SessionUnregistered()
    }

    /// Returns the device's presence if the account may access it, and subscribes the place if requested.
    /// Throws 8002 if the device is not known, 8003 if the account has no right to it, 20011 if it has one and the
    /// device is disabled, 12004 if it may not control it, 10007 if it has too many subscribers, 10006 if the place was
    /// gone before the records were read.
    package func inspect(_ message: SessionInspect) async throws(ApusError) -> SessionInspected {
        var isKept = false
        defer { handled(isKept: isKept) }
        let place = message.subscribe ? try SessionPlace(message.place) : nil
        let arrival = place.map { arrives($0) }
        defer { if let arrival { arrivals[arrival] = nil } }
        try await readRecord()
        guard let record else { throw ApusError(.targetUnknown, "no such device") }
        guard let right = AccountID(rawValue: message.account).flatMap({ record.right(of: $0) }) else {
            throw ApusError(.illegalRelation)
        }
        try record.checkEnabled()
        guard !message.control || right != .view else {
            throw ApusError(.notAllowed, "the device is shared with this account for watching and reading only")
        }
        if let place, let arrival {
            try checkStillHere(arrival)
            let (isAccepted, actions) = machine.subscribe(place, now: .now())
            guard isAccepted else { throw ApusError(.overloaded, "too many sessions subscribe to this device") }
            run(actions)
        }
        isKept = true
        return SessionInspected.with {
            $0.online = machine.presence.online.rawValue
            $0.time = machine.presence.time
            $0.dataSinceMs = record.dataSince
            if let place = machine.place { $0.place = place.message }
        }
    }

    /// Changes which accounts may use the device (IV-B8, IV-B10), or whether it can be used (IV-C16). Durable on
    /// return; other nodes read it soon after.
    ///
    /// - Throws: as ``SessionRecords/relate(_:epoch:_:by:now:keepSeconds:events:)``; 10007 if too many events of the
    ///   device wait to be published.
    package func relate(_ message: SessionRelate) async throws(ApusError) -> SessionRelated {
        var isKept = false
        defer { handled(isKept: isKept) }
        let change = try DeviceRelationChange(message)
        let client = try DeviceClient(message)
        guard let device = DeviceID(rawValue: address.key) else { throw ApusError(.malformed) }
        guard !isChanging else {
            throw ApusError(.versionConflict, "another change of the device's accounts is in progress")
        }
        isChanging = true
        defer { isChanging = false }
        let events = try await events(of: change, message)
        do throws(ApusError) {
            let changed = try await context.records.relate(
                device, epoch: epoch, change, by: client, now: context.clusterMilliseconds() / 1000,
                keepSeconds: context.configuration.grantLifetime.components.seconds + Self.keepSecondsMore,
                events: events)
            know(changed.record)
            if let entry = changed.entry { events?.outbox.stored(entry) }
        } catch {
            if failed(error) { events?.outbox.unconfirmed(address) }
            throw error
        }
        isKept = true
        changeCount += 1
        // Also after a repeated request: the device may have registered between the write and its answer.
        if change == .disable(true) {
            for place in machine.places { context.kick(place, .deviceDisabled, nil, epoch) }
        }
        log.notice(
            change.report,
            metadata: [
                LogKey.device: "\(device)", LogKey.account: "\(record?.account?.rawValue ?? "none")",
                LogKey.count: "\(record?.shares.count ?? 0)",
            ])
        return SessionRelated.with { $0.published = events != nil }
    }

    /// Nil if the sender publishes the event itself.
    ///
    /// - Throws: 10007 if too much waits in the outbox, 10009 and 10021 if this node cannot write there.
    private func events(
        of change: DeviceRelationChange, _ message: SessionRelate
    ) async throws(ApusError) -> DeviceEvents? {
        guard message.publish, let outbox = context.outbox else { return nil }
        try await outbox.claim(address.shard, epoch)
        guard !change.waitsForRoom || !outbox.refuses(address) else {
            throw ApusError(.overloaded, "too many events of the device wait to be published")
        }
        return DeviceEvents(outbox, message, timeMs: context.clusterMilliseconds())
    }

    /// Ends a place's subscription to the device.
    package func forget(_ message: SessionForget) async throws(ApusError) -> SessionForgotten {
        defer { handled(isKept: false) }
        let place = try SessionPlace(message.place)
        leave { $0 == place }
        run(machine.unsubscribe(place))
        return SessionForgotten()
    }

    /// Notes that the device sleeps or wakes.
    package func sleep(_ message: SessionSleep) async throws(ApusError) -> SessionSlept {
        defer { handled(isKept: false) }
        run(machine.setAsleep(message.asleep, from: try SessionPlace(message.place), wallSeconds: wallSeconds()))
        return SessionSlept()
    }

    /// Notes that a node died, and its sockets with it.
    package func nodeLost(_ node: NodeID) {
        guard context.isOwner(address.shard, epoch) else { return }
        leave { $0.node == node }
        run(machine.nodeLost(node, now: .now()))
    }

    /// Notes that a requested time has come.
    package func tick() {
        // An actor whose shard has another owner has outdated state: its client may be registered at the next owner.
        guard context.isOwner(address.shard, epoch) else { return }
        run(machine.tick(now: .now(), wallSeconds: wallSeconds()))
    }

    /// Notes a place whose registration or subscription waits for the records. Other messages are processed while it
    /// waits, so messages about the place in the meantime are carried out at once.
    private func arrives(_ place: SessionPlace) -> UInt64 {
        lastArrival += 1
        arrivals[lastArrival] = place
        return lastArrival
    }

    /// Notes that these places are gone. What they requested before is not carried out.
    private func leave(_ isGone: (SessionPlace) -> Bool) {
        guard !arrivals.isEmpty else { return }
        arrivals = arrivals.filter { !isGone($0.value) }
    }

    private func checkStillHere(_ arrival: UInt64) throws(ApusError) {
        guard arrivals[arrival] != nil else { throw ApusError(.cancelled, "the session ended in the meantime") }
    }

    private func run(_ actions: [PresenceStateMachine.Action]) {
        if machine.memory != written {
            written = machine.memory
            context.remember(address, written)
        }
        for action in actions {
            switch action {
            case .kick(let place, let order): context.kick(place, .kicked, order, epoch)
            case .release(let place): context.kick(place, .linkLost, nil, epoch)
            case .push(let presence, let places): context.push(address.key, presence, places, epoch)
            case .wake(let time): context.wake(self, time)
            case .idle: setIdle(!isInDoubt())
            }
        }
    }

    /// Notes that a message ends. Nothing suspends between this and the message's end.
    private func handled(isKept: Bool) {
        if machine.isUsed { setIdle(false) }
        if let doubtUntil, isInDoubt(), !isDoubtTimed {
            isDoubtTimed = true
            context.wake(self, doubtUntil)
        }
        run(machine.handled(isKept: isKept, now: .now()))
    }

    /// True while a change of the record may still be carried out. An actor that is released would not know of it.
    private func isInDoubt() -> Bool { doubtUntil.map { MonotonicTime.now() < $0 } ?? false }

    private func setIdle(_ isIdle: Bool) {
        guard isIdle || self.isIdle else { return }
        self.isIdle = isIdle
        context.isIdle(self, isIdle)
    }

    /// Binds the device to the account of its token, once. Later tokens must name the same account (8023). A token that
    /// was issued before the device was unbound or transferred is refused (12001), and so is a disabled device (20011).
    private func bind(to text: String, issued: Int64) async throws(ApusError) {
        guard let account = AccountID(rawValue: text) else { throw ApusError(.malformed) }
        try await readRecord()
        guard issued >= record?.tokensAfter ?? 0 else {
            throw ApusError(.tokenInvalid, "the device was unbound or transferred after its token was issued")
        }
        if let bound = record?.account {
            guard bound == account else { throw ApusError(.boundToOtherUser) }
            try record?.checkEnabled()
            return
        }
        try record?.checkEnabled()
        guard let device = DeviceID(rawValue: address.key) else { throw ApusError(.malformed) }
        var new = record ?? DeviceRecord(device: device, epoch: epoch)
        (new.account, new.epoch) = (account, epoch)
        new.boundAtUnixMilliseconds = wallSeconds() * 1000
        new.lastSeenUnixMilliseconds = new.boundAtUnixMilliseconds
        let before = changeCount
        // One conditional write: of two concurrent registrations, the second finds the account of the first.
        let bound: DeviceRecord
        do throws(ApusError) {
            bound = try await context.records.bind(new)
        } catch {
            failed(error)
            throw error
        }
        guard changeCount == before else {
            throw ApusError(.versionConflict, "the accounts of the device were changed in the meantime")
        }
        know(bound)
        guard bound.account == account else { throw ApusError(.boundToOtherUser) }
        guard bound == new else { return }
        log.notice(
            "A device was bound to an account", metadata: [LogKey.device: "\(device)", LogKey.account: "\(account)"])
    }

    /// If the store cannot be read, the session is judged by the state in memory, and the next registration reads the
    /// store again.
    private func readMemory() async {
        guard !isMemoryRead else { return }
        do throws(ApusError) {
            if let memory = try await context.memory(address) {
                machine.restore(memory)
                written = machine.memory
            }
            isMemoryRead = true
        } catch {
            log.warning("The record of an identity cannot be read", metadata: Logger.facts(of: error))
        }
    }

    private func readRecord() async throws(ApusError) {
        guard address.kind == .device, let device = DeviceID(rawValue: address.key) else { return }
        while !isRecordRead {
            let before = changeCount
            let read = try await context.records.record(of: device)
            // What was read before a change may be what stood before it.
            guard changeCount == before, !isRecordRead else { continue }
            record = read
            isRecordRead = read != nil && (doubtUntil.map { MonotonicTime.now() >= $0 } ?? true)
            return
        }
    }

    /// Notes the record as the store has it.
    private func know(_ record: DeviceRecord) {
        (self.record, isRecordRead, doubtUntil) = (record, true, nil)
    }

    /// Notes that a change of the record failed. If it may have been carried out, or still be, what is known of the
    /// record is not used any more.
    ///
    /// - Returns: true if it may have been carried out.
    @discardableResult
    private func failed(_ error: ApusError) -> Bool {
        guard !Self.refusals.contains(error.code) else { return false }
        (record, isRecordRead) = (nil, false)
        (doubtUntil, isDoubtTimed) = (MonotonicTime.now() + Self.doubtTime, false)
        changeCount += 1
        return true
    }
}

extension DeviceRelationChange {
    /// For the log.
    fileprivate var report: Logger.Message {
        switch self {
        case .bind, .handOver, .share, .invite, .accept, .unshare, .assign: "The accounts of a device were changed"
        case .disable(true): "A device was disabled"
        case .disable(false): "A device was enabled"
        }
    }
}

/// The wall clock, in Unix seconds. For display; never used for decisions.
@Sendable package func wallSeconds() -> Int64 { Int64(Date().timeIntervalSince1970) }

/// What identity actors share: the records, and the messages to the edges.
/// Isolation: `Sendable`. Closures are called from actors and must not block.
package struct IdentityContext: Sendable {
    let configuration: SessionConfiguration
    let records: SessionRecords
    /// Closes a session's socket with this code, unless its client's order is later than the given one.
    let kick: @Sendable (SessionPlace, ErrorCode, SessionOrder?, Epoch) -> Void
    let push: @Sendable (_ device: String, Presence, [SessionPlace], Epoch) -> Void
    /// True if this node owns the shard under this epoch, according to its map.
    let isOwner: @Sendable (ShardID, Epoch) -> Bool
    let wake: @Sendable (IdentityActor, _ at: MonotonicTime) -> Void
    /// True: the actor has nothing left to do. Said again with each message.
    let isIdle: @Sendable (IdentityActor, Bool) -> Void
    /// Writes the memory of an identity's clients.
    let remember: @Sendable (EntityAddress, PresenceStateMachine.Memory) -> Void
    /// The cluster's time, in Unix milliseconds.
    let clusterMilliseconds: @Sendable () -> Int64
    /// Publishes the changes of who may use devices; nil: their clients' nodes do.
    let outbox: OwnedOutbox?
    /// Reads the written memory. Throws 10021 if it cannot be read.
    let memory: @Sendable (EntityAddress) async throws(ApusError) -> PresenceStateMachine.Memory?

    package init(
        configuration: SessionConfiguration, records: SessionRecords,
        kick: @escaping @Sendable (SessionPlace, ErrorCode, SessionOrder?, Epoch) -> Void,
        push: @escaping @Sendable (_ device: String, Presence, [SessionPlace], Epoch) -> Void,
        isOwner: @escaping @Sendable (ShardID, Epoch) -> Bool,
        wake: @escaping @Sendable (IdentityActor, _ at: MonotonicTime) -> Void,
        isIdle: @escaping @Sendable (IdentityActor, Bool) -> Void,
        remember: @escaping @Sendable (EntityAddress, PresenceStateMachine.Memory) -> Void,
        clusterMilliseconds: @escaping @Sendable () -> Int64 = { wallSeconds() * 1000 }, outbox: OwnedOutbox? = nil,
        memory: @escaping @Sendable (EntityAddress) async throws(ApusError) -> PresenceStateMachine.Memory?
    ) {
        (self.configuration, self.records) = (configuration, records)
        (self.kick, self.push, self.isOwner) = (kick, push, isOwner)
        (self.wake, self.isIdle) = (wake, isIdle)
        (self.remember, self.memory) = (remember, memory)
        (self.clusterMilliseconds, self.outbox) = (clusterMilliseconds, outbox)
    }
}

extension SessionOrder {
    init(_ message: ApusWire.SessionOrder) { self.init(epoch: message.epoch, sequence: message.sequence) }

    var message: ApusWire.SessionOrder {
        .with {
            $0.epoch = epoch
            $0.sequence = sequence
        }
    }
}

extension SessionPlace {
    init(_ message: ApusWire.SessionPlace) throws(ApusError) {
        guard let name = NodeName(rawValue: message.node), !message.session.isEmpty, message.session.utf8.count <= 64
        else { throw ApusError(.malformed, "the session's place is not valid") }
        self.init(node: NodeID(name: name, incarnation: message.incarnation), session: message.session)
    }

    var message: ApusWire.SessionPlace {
        .with {
            $0.node = node.name.rawValue
            $0.incarnation = node.incarnation
            $0.session = session
        }
    }
}
