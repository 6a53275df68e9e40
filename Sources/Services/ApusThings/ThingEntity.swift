import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf

// A device's thing model at the owner of the device's shard. Its state is a record (D15), so an acknowledged change
// survives the failure of all nodes.

extension EntityKind {
    static let thing = Self(rawValue: 5)
}

extension ThingState: EntityContentMessage {}

extension ThingRead: EntityMessage {
    typealias Reply = ThingReadReply
    static var method: UInt16 { 0x0121 }
    static var isIdempotent: Bool { true }
}

extension ThingWrite: EntityMessage {
    typealias Reply = ThingChanged
    static var method: UInt16 { 0x0122 }
}

extension ThingReport: EntityMessage {
    typealias Reply = ThingChanged
    static var method: UInt16 { 0x0123 }
}

extension ThingAddUser: EntityMessage {
    typealias Reply = ThingChanged
    static var method: UInt16 { 0x0124 }
}

extension ThingDeleteUser: EntityMessage {
    typealias Reply = ThingChanged
    static var method: UInt16 { 0x0125 }
}

extension ThingListPending: EntityMessage {
    typealias Reply = ThingListPendingReply
    static var method: UInt16 { 0x0126 }
    static var isIdempotent: Bool { true }
}

extension ThingWithdraw: EntityMessage {
    typealias Reply = ThingWithdrawn
    static var method: UInt16 { 0x0127 }
    static var isIdempotent: Bool { true }
}

/// The kind of entity of thing models; the key is the device's id.
enum ThingEntity {
    static let definition: EntityDefinition<ThingState> = {
        var definition = EntityDefinition<ThingState>(.thing, name: "thing", durability: .recorded)
        definition.onReading(ThingRead.self) { model, message, scope throws(ApusError) in
            let path = try ThingPath(message.path)
            var model = model
            try model.enter(message.dataSinceMs)
            var reply = try model.read(
                path,
                online: .with {
                    ($0.root, $0.name, $0.value) = (.readonly, ThingState.onlineName, "\(message.online)")
                    $0.time = message.onlineTime
                })
            reply.isFresh = model.isFresh(path, maxAgeMs: Int64(message.maxAgeMs), at: scope.wallMilliseconds)
            return reply
        }
        definition.onReading(ThingListPending.self) { model, message, _ throws(ApusError) in
            var entered = model
            try entered.enter(message.dataSinceMs)
            let model = entered
            return .with {
                $0.settings = model.pending.map { leaf in
                    .with { ($0.path, $0.json, $0.version) = (leaf.valuePath, leaf.value, leaf.version) }
                }
                $0.writers = model.pending.map { leaf in .with { $0.writers = ThingState.writers(of: leaf) } }
                $0.version = model.version
            }
        }
        definition.on(ThingWrite.self) { model, message, scope throws(ApusError) in
            let path = try ThingPath(message.path)
            try model.enter(message.dataSinceMs)
            if message.hasCheckedProduct, let other = model.refusal(of: path, checked: message.checkedProduct) {
                return refuse(other, &scope)
            }
            let change = try model.write(
                path, message.json, ifVersion: message.ifVersion, by: message.hasWriter ? message.writer : nil,
                time: scope.wallMilliseconds / 1000)
            return try publish(change, of: model, &scope)
        }
        definition.on(ThingWithdraw.self) { model, message, scope throws(ApusError) in
            try model.enter(message.dataSinceMs)
            let changes = model.withdraw(message.settings, time: scope.wallMilliseconds / 1000)
            var answer = ThingWithdrawn()
            for change in changes { answer.changes.append(try publish(change, of: model, &scope)) }
            return answer
        }
        definition.on(ThingReport.self) { model, message, scope throws(ApusError) in
            let path = try ThingPath(message.path)
            try model.enter(message.dataSinceMs)
            if message.hasCheckedProduct, let other = model.refusal(of: path, checked: message.checkedProduct) {
                return refuse(other, &scope)
            }
            let change = try model.report(
                path, message.json, received: message.receivedVersion, time: scope.wallMilliseconds / 1000)
            return try publish(change, of: model, &scope)
        }
        definition.on(ThingAddUser.self) { model, message, scope throws(ApusError) in
            try model.enter(message.dataSinceMs)
            let change = try model.addUser(message.name, message.json, time: scope.wallMilliseconds / 1000)
            return try publish(change, of: model, &scope)
        }
        definition.on(ThingDeleteUser.self) { model, message, scope throws(ApusError) in
            try model.enter(message.dataSinceMs)
            return try publish(model.deleteUser(message.name), of: model, &scope)
        }
        return definition
    }()

    /// Adds to the change its time, and the time since which the data of the model belongs to its account. A change
    /// that changed something is published by way of the outbox (``ThingService/deliver(_:)``).
    private static func publish(
        _ change: ThingChanged, of model: ThingState, _ scope: inout EntityScope
    ) throws(ApusError) -> ThingChanged {
        var change = change
        (change.changedMs, change.dataSinceMs) = (scope.wallMilliseconds, model.dataSinceMs)
        guard change.version > change.previousVersion else { return change }
        change.isQueued = true
        guard let bytes: [UInt8] = try? change.serializedBytes() else { throw ApusError(.internalFailure) }
        try scope.enqueue(bytes, number: change.version)
        return change
    }

    /// Answers that the device has another product. The sender checks again and repeats the request, so the answer is
    /// not stored.
    private static func refuse(_ refusal: ThingChanged, _ scope: inout EntityScope) -> ThingChanged {
        scope.isAnswerKept = false
        return refusal
    }
}
