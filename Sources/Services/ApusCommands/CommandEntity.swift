import ApusCluster
import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

// The commands of a device at the owner of the device's shard, in two queues (docs/decisions/34). Those that are kept
// for a device that is away, and long ones, are a record (D15), and survive the death of all nodes. The others end with
// their requests. They are replicated, and survive the death of any node.

extension EntityKind {
    static let commands = Self(rawValue: 6)
    static let liveCommands = Self(rawValue: 7)
}

extension CommandState: EntityContentMessage {}

extension CommandSubmit: EntityMessage {
    typealias Reply = CommandReport
    static var method: UInt16 { 0x0131 }
    static var isIdempotent: Bool { true }
    /// A time to live of at most a year.
    package var isWithinBounds: Bool { (0...31_536_000_000).contains(ttlMs) && waiter.until.rawValue <= 6 }
}

extension CommandListen: EntityMessage {
    typealias Reply = CommandListening
    static var method: UInt16 { 0x0132 }
    static var isIdempotent: Bool { true }
}

extension CommandLeave: EntityMessage {
    typealias Reply = CommandLeft
    static var method: UInt16 { 0x0133 }
    static var isIdempotent: Bool { true }
}

extension CommandAcknowledge: EntityMessage {
    typealias Reply = CommandAcknowledged
    static var method: UInt16 { 0x0134 }
    static var isIdempotent: Bool { true }
}

extension CommandAnswer: EntityMessage {
    typealias Reply = CommandAnswered
    static var method: UInt16 { 0x0135 }
    static var isIdempotent: Bool { true }
}

extension CommandAwait: EntityMessage {
    typealias Reply = CommandReport
    static var method: UInt16 { 0x0136 }
    static var isIdempotent: Bool { true }
}

extension CommandRead: EntityMessage {
    typealias Reply = CommandReadReply
    static var method: UInt16 { 0x0137 }
    static var isIdempotent: Bool { true }
}

extension CommandSetOrder: EntityMessage {
    typealias Reply = CommandOrderSet
    static var method: UInt16 { 0x0138 }
    static var isIdempotent: Bool { true }
}

extension CommandCancel: EntityMessage {
    typealias Reply = CommandReport
    static var method: UInt16 { 0x0139 }
    static var isIdempotent: Bool { true }
}

extension CommandRights: EntityMessage {
    typealias Reply = CommandRightsTaken
    static var method: UInt16 { 0x013a }
    static var isIdempotent: Bool { true }
}

/// A queue asks its own node who may use the device.
extension CommandCheck: NodeMessage {
    typealias Reply = CommandCheckTaken
    static var method: UInt16 { 0x0056 }
}

/// The owner of a device sends a command to the node of its connection.
extension CommandDeliver: NodeMessage {
    typealias Reply = CommandDelivered
    static var method: UInt16 { 0x0045 }
    package var isWithinBounds: Bool { (0...31_536_000_000).contains(ttlMs) }
}

/// The owner of a device notifies a node whose request waits.
extension CommandReached: NodeMessage {
    typealias Reply = CommandReachedTaken
    static var method: UInt16 { 0x0046 }
}

/// The node of an app sends a command to the node of the device's owner.
extension CommandRun: NodeMessage {
    typealias Reply = CommandReport
    static var method: UInt16 { 0x004d }
    package var isWithinBounds: Bool { submit.isWithinBounds && (0...31_536_000_000).contains(leftMs) }
}

/// The kinds of entities; the key is the device's id.
enum CommandQueue: CaseIterable, Sendable {
    /// Commands that end with their requests.
    case live
    /// Commands with a time to live of their own, and long ones.
    case kept

    private static var reminder: String { "advance" }

    private var plain: EntityDefinition<CommandState> {
        switch self {
        case .kept: EntityDefinition(.commands, name: "commands", durability: .recorded)
        case .live: EntityDefinition(.liveCommands, name: "live commands", durability: .replicated)
        }
    }

    func address(_ device: DeviceID) -> EntityAddress { plain.address(device.rawValue) }

    /// - Parameter node: the local one, which is asked for the check of rights.
    func definition(_ configuration: CommandConfiguration, node: NodeName) -> EntityDefinition<CommandState> {
        let part = Part(configuration: self == .live ? configuration.live : configuration, node: node)
        var definition = plain
        Self.addClients(to: &definition, part)
        Self.addDevice(to: &definition, part)
        definition.onReminder { queue, _, scope throws(ApusError) in
            try Self.change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                queue.advance(part.configuration, at: now, &effects)
            }
            // A queue with nothing in it takes no memory.
            if queue == CommandState() { scope.isDone = true }
        }
        return definition
    }

    /// What the handlers of a queue need.
    private struct Part: Sendable {
        let configuration: CommandConfiguration
        let node: NodeName
    }

    private static func addClients(to definition: inout EntityDefinition<CommandState>, _ part: Part) {
        let configuration = part.configuration
        definition.on(CommandSubmit.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                CommandReport(try queue.submit(message, configuration, at: now, &effects))
            }
        }
        definition.on(CommandAwait.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                queue.advance(configuration, at: now, &effects)
                return CommandReport(queue.wait(message.waiter, for: message.id))
            }
        }
        definition.on(CommandCancel.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                CommandReport(try queue.cancel(message.id, configuration, at: now, &effects))
            }
        }
        definition.on(CommandSetOrder.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                queue.order = message.order
                queue.advance(configuration, at: now, &effects)
                return CommandOrderSet()
            }
        }
        definition.onReading(CommandRead.self) { queue, message, scope throws(ApusError) in
            // What has expired is read as such, also before the reminder comes.
            var (queue, effects) = (queue, CommandState.Effects())
            queue.advance(configuration, at: scope.wallMilliseconds, &effects)
            let entries = queue.open + queue.ended.reversed()
            return .with {
                $0.entries = (message.id.isEmpty ? entries : entries.filter { $0.id == message.id }).map(\.outside)
                $0.order = queue.order == .unspecified ? .allAtOnce : queue.order
            }
        }
    }

    private static func addDevice(to definition: inout EntityDefinition<CommandState>, _ part: Part) {
        let configuration = part.configuration
        definition.on(CommandListen.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                queue.listen(message.listener, configuration, at: now, &effects)
                return CommandListening()
            }
        }
        definition.on(CommandLeave.self) { queue, message, _ throws(ApusError) in
            queue.leave(message.listener)
            return CommandLeft()
        }
        definition.on(CommandAcknowledge.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                let unknown = message.ids.filter { queue.entry($0) == nil }
                queue.acknowledge(message.ids, configuration, at: now, &effects)
                return .with { $0.unknown = unknown }
            }
        }
        definition.on(CommandAnswer.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                let isKnown = queue.entry(message.id) != nil
                try queue.answer(message, configuration, at: now, &effects)
                return .with { $0.isKnown = isKnown }
            }
        }
        definition.on(CommandRights.self) { queue, message, scope throws(ApusError) in
            try change(&queue, &scope, part) { queue, now, effects throws(ApusError) in
                queue.apply(message, configuration, at: now, &effects)
            }
            if queue == CommandState() { scope.isDone = true }
            return CommandRightsTaken()
        }
    }

    /// Changes the queue, sends what this causes, and sets the reminder for what follows without a message.
    private static func change<Reply>(
        _ queue: inout CommandState, _ scope: inout EntityScope, _ part: Part,
        _ body: (inout CommandState, Int64, inout CommandState.Effects) throws(ApusError) -> Reply
    ) throws(ApusError) -> Reply {
        let now = scope.wallMilliseconds
        var effects = CommandState.Effects()
        let reply = try body(&queue, now, &effects)
        for (listener, entry) in effects.deliveries {
            guard let node = NodeName(rawValue: listener.node) else { continue }
            try scope.tell(
                node,
                CommandDeliver.with {
                    ($0.device, $0.number, $0.entry) = (scope.address.key, listener.number, entry.outside)
                    $0.entry.content = entry.content
                    $0.ttlMs = max(0, entry.expiresMs - now)
                    $0.acknowledge =
                        entry.noAnswer || queue.order == .afterAcknowledgement
                        || entry.waiters.contains { $0.until == .acknowledged }
                })
        }
        for (name, entry) in effects.reached {
            guard let node = NodeName(rawValue: name) else { continue }
            try scope.tell(node, CommandReached.with { ($0.device, $0.entry) = (scope.address.key, entry) })
        }
        if effects.needsRights {
            let isLive = scope.address.kind == .liveCommands
            try scope.tell(
                part.node,
                CommandCheck.with {
                    ($0.device, $0.live, $0.senders) = (scope.address.key, isLive, queue.senders)
                })
        }
        // A reminder that comes too early sets the next one, so most commands cost none.
        if let next = queue.nextMs(part.configuration),
            !scope.reminders.contains(where: { $0.due > now && $0.due <= next })
        {
            try scope.remind(reminder, at: next)
        }
        return reply
    }
}

extension CommandReport {
    init(entry: CommandEntry) {
        self.init()
        self.entry = entry
    }

    init(_ entry: CommandEntry?) {
        self.init()
        if let entry { self.entry = entry.outside }
    }
}

extension CommandEntry {
    /// Without the content, and who waits.
    var outside: CommandEntry {
        var entry = self
        (entry.content, entry.waiters) = (Data(), [])
        return entry
    }
}
