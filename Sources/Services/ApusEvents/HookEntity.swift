import ApusCluster
import ApusCore
import ApusCrypto
import ApusWire
import Foundation
import SwiftProtobuf

// The queue of a hook at the owner of its shard. Its state is replicated; the events themselves are records.

extension EntityKind {
    static let hookQueues = Self(rawValue: 16)
}

extension HookQueue: EntityContentMessage {}

extension HookWritten: EntityMessage {
    typealias Reply = HookWrittenReply
    static var method: UInt16 { 0x0161 }
    package var isWithinBounds: Bool {
        share <= UInt32(HookQueue.shareNumberMax) && HookKind.areNames(customer, hook)
    }
}

extension HookDelivered: EntityMessage {
    typealias Reply = HookDeliveredReply
    static var method: UInt16 { 0x0162 }
    /// The limit of each count of a report. A batch has fewer events.
    private static var eventsMax: UInt64 { 65_536 }
    package var isWithinBounds: Bool {
        delivered <= Self.eventsMax && expired <= Self.eventsMax && refused <= Self.eventsMax
            && byteCount <= WireNumber.sequenceMax
            && shares.count <= HookQueue.shareNumberMax
    }
}

extension HookLook: EntityMessage {
    typealias Reply = HookQueue
    static var method: UInt16 { 0x0163 }
    static var isIdempotent: Bool { true }
}

extension HookFound: EntityMessage {
    typealias Reply = HookFoundReply
    static var method: UInt16 { 0x0164 }
    static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { HookKind.areNames(customer, hook) }
}

extension HookRefused: EntityMessage {
    typealias Reply = HookRefusedReply
    static var method: UInt16 { 0x0165 }
    package var isWithinBounds: Bool { share <= UInt32(HookQueue.shareNumberMax) }
}

extension HookCleared: EntityMessage {
    typealias Reply = HookClearedReply
    static var method: UInt16 { 0x0166 }
    package var isWithinBounds: Bool { shares.count <= HookQueue.shareNumberMax }
}

/// The owner of a hook's shard asks its own node to deliver.
extension HookDeliver: NodeMessage {
    typealias Reply = HookDeliverTaken
    static var method: UInt16 { 0x004b }
}

/// The kind of entity of hook queues.
struct HookKind {
    private static let reminder = "deliver"

    /// This node, which delivers.
    let node: NodeName
    let bounds: HookBounds
    /// The time in which a node must deliver a batch, in milliseconds.
    let sendingTime: Int64

    /// False if a text is too long for the name of a customer or a hook.
    static func areNames(_ customer: String, _ hook: String) -> Bool {
        max(customer.utf8.count, hook.utf8.count) <= 256
    }

    /// The key is a digest: its length is bounded, and the two names together may be longer.
    static func address(_ hook: String, of customer: String) -> EntityAddress {
        let digest = SHA256.hash(data: Array("\(customer)/\(hook)".utf8)).prefix(16)
        return EntityAddress(kind: .hookQueues, key: Hexadecimal.text(digest))
    }

    var definition: EntityDefinition<HookQueue> {
        var definition = EntityDefinition<HookQueue>(.hookQueues, name: "hook queue", durability: .replicated)
        definition.on(HookWritten.self) { queue, message, scope throws(ApusError) in
            let isTaken = queue.written(message, at: scope.wallMilliseconds, within: bounds)
            try advance(&queue, &scope)
            return .with { $0.dropped = !isTaken }
        }
        definition.on(HookDelivered.self) { queue, message, scope throws(ApusError) in
            queue.ended(message, at: scope.wallMilliseconds)
            try advance(&queue, &scope)
            return HookDeliveredReply()
        }
        definition.on(HookRefused.self) { queue, message, _ in
            let isKept = queue.refuses(message, within: bounds)
            return .with { $0.kept = isKept }
        }
        definition.on(HookCleared.self) { queue, message, _ in
            queue.cleared(message)
            return HookClearedReply()
        }
        definition.on(HookFound.self) { queue, message, scope throws(ApusError) in
            queue.found(message.customer, message.hook, at: scope.wallMilliseconds)
            try advance(&queue, &scope)
            return HookFoundReply()
        }
        definition.onReading(HookLook.self) { queue, _, _ in queue }
        definition.onReminder { queue, _, scope throws(ApusError) in try advance(&queue, &scope) }
        return definition
    }

    private func advance(_ queue: inout HookQueue, _ scope: inout EntityScope) throws(ApusError) {
        if queue.begins(at: scope.wallMilliseconds, for: sendingTime) {
            try scope.tell(
                node,
                HookDeliver.with {
                    ($0.customer, $0.hook, $0.untilMs) = (queue.customer, queue.hook, queue.sendingUntilMs)
                    $0.batch = queue.batch
                })
        }
        guard let due = queue.dueMs else { return scope.cancelReminder(Self.reminder) }
        let now = scope.wallMilliseconds
        if !scope.reminders.contains(where: { $0.due > now && $0.due == due }) {
            try scope.remind(Self.reminder, at: due)
        }
    }
}
