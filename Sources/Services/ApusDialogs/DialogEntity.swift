import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf

// The dialog of a device at the owner of the device's shard. It is replicated: it survives the death of any node.

extension EntityKind {
    static let dialogs = Self(rawValue: 18)
}

extension DialogState: EntityContentMessage {}

extension DialogLook: EntityMessage {
    typealias Reply = DialogState
    static var method: UInt16 { 0x0181 }
    static var isIdempotent: Bool { true }
}

extension DialogBegin: EntityMessage {
    typealias Reply = DialogBegun
    static var method: UInt16 { 0x0182 }
    static var isIdempotent: Bool { true }
}

extension DialogFinish: EntityMessage {
    typealias Reply = DialogTurn
    static var method: UInt16 { 0x0183 }
    static var isIdempotent: Bool { true }
}

extension DialogStop: EntityMessage {
    typealias Reply = DialogState
    static var method: UInt16 { 0x0184 }
    static var isIdempotent: Bool { true }
}

extension DialogPublished: EntityMessage {
    typealias Reply = DialogTaken
    static var method: UInt16 { 0x0185 }
    static var isIdempotent: Bool { true }
}

extension DialogEnter: EntityMessage {
    typealias Reply = DialogTaken
    static var method: UInt16 { 0x0186 }
    static var isIdempotent: Bool { true }
}

extension DialogListen: EntityMessage {
    typealias Reply = DialogState
    static var method: UInt16 { 0x0188 }
    static var isIdempotent: Bool { true }
}

extension DialogYield: EntityMessage {
    typealias Reply = DialogYielded
    static var method: UInt16 { 0x0189 }
    static var isIdempotent: Bool { true }
}

extension DialogSpoken: EntityMessage {
    typealias Reply = DialogState
    static var method: UInt16 { 0x018a }
    static var isIdempotent: Bool { true }
}

/// The node of a client sends a sentence to the node of the dialog's owner.
extension DialogRun: NodeMessage {
    typealias Reply = DialogTurn
    static var method: UInt16 { 0x005a }
    package var isWithinBounds: Bool {
        (0...31_536_000_000).contains(leftMs) && id.utf8.count == 32
            && text.utf8.count <= DialogConfiguration.textByteCountMax && (heard.isEmpty || heard.utf8.count == 32)
    }
}

/// A dialog requests from its owner's node that a sentence is continued, or that changes are published.
extension DialogWork: NodeMessage {
    typealias Reply = DialogTaken
    static var method: UInt16 { 0x005b }
}

/// The kind of dialogs; the key is the device's id.
struct DialogKind {
    private static let reminder = "advance"

    private let configuration: DialogConfiguration
    private let node: NodeName

    /// - Parameter node: this node. It carries out sentences, and publishes changes.
    init(_ configuration: DialogConfiguration, node: NodeName) {
        (self.configuration, self.node) = (configuration, node)
    }

    private typealias Body<Reply> = (inout DialogStateMachine, Int64, inout [DialogStateMachine.Action]) -> Reply

    var definition: EntityDefinition<DialogState> {
        var definition = EntityDefinition<DialogState>(.dialogs, name: "dialog", durability: .replicated)
        definition.onReading(DialogLook.self) { dialog, message, scope throws(ApusError) in
            var machine = DialogStateMachine(restoring: dialog, configuration)
            try machine.enter(message.dataSinceMs)
            var seen = machine.state
            let question = machine.question(of: message.account, message.access, at: scope.wallMilliseconds)
            if question == nil { seen.clearQuestion() }
            return seen
        }
        definition.on(DialogBegin.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, message.dataSinceMs, &scope) { machine, now, actions in
                machine.begin(message, at: now, &actions)
            }
        }
        definition.on(DialogFinish.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, 0, &scope) { machine, now, actions in machine.finish(message, at: now, &actions) }
        }
        definition.on(DialogStop.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, message.dataSinceMs, &scope) { machine, now, actions in
                machine.stop(at: now, &actions)
                return machine.state
            }
        }
        definition.on(DialogListen.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, message.dataSinceMs, &scope) { machine, now, actions in
                machine.listen(message.listening, joins: message.joins, at: now, &actions)
                return machine.state
            }
        }
        definition.on(DialogYield.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, message.dataSinceMs, &scope) { machine, now, actions in
                .with { $0.isFree = machine.yield(message.listening, at: now, &actions) }
            }
        }
        definition.on(DialogSpoken.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, message.dataSinceMs, &scope) { machine, now, actions in
                machine.spoken(message.id, at: now, &actions)
                return machine.state
            }
        }
        definition.on(DialogEnter.self) { dialog, message, scope throws(ApusError) in
            try change(&dialog, message.dataSinceMs, &scope) { _, _, _ in }
            return DialogTaken()
        }
        definition.on(DialogPublished.self) { dialog, message, scope throws(ApusError) in
            let hasChanged = try change(&dialog, 0, &scope) { machine, _, actions in
                machine.published(message.versions)
                return !actions.isEmpty
            }
            // A change that is published again is recognized by its version.
            scope.mayBeLost = !hasChanged
            return DialogTaken()
        }
        definition.onReminder { dialog, _, scope throws(ApusError) in
            try change(&dialog, 0, &scope) { machine, now, actions in machine.advance(at: now, &actions) }
            if dialog.phase == .unspecified { scope.isDone = true }
        }
        return definition
    }

    /// Changes the dialog, asks this node for what this causes, and sets the reminder for what follows without a
    /// message.
    private func change<Reply>(
        _ dialog: inout DialogState, _ dataSince: UInt64, _ scope: inout EntityScope, _ body: Body<Reply>
    ) throws(ApusError) -> Reply {
        let now = scope.wallMilliseconds
        var machine = DialogStateMachine(restoring: dialog, configuration)
        var actions: [DialogStateMachine.Action] = []
        try machine.enter(dataSince)
        machine.bound(at: now)
        let isRestored = dialog.epoch != 0 && dialog.epoch != scope.epoch
        if isRestored { machine.restored(at: now, &actions) }
        let reply = body(&machine, now, &actions)
        for action in actions {
            let work = DialogWork.with {
                ($0.device, $0.dataSinceMs) = (scope.address.key, machine.state.dataSinceMs)
                switch action {
                case .work(let turn): $0.turn = turn
                case .publish(let changes): $0.changes = changes
                }
            }
            try scope.tell(node, work)
        }
        dialog = machine.state
        dialog.epoch = scope.epoch
        if let next = machine.nextMs, !scope.reminders.contains(where: { $0.due > now && $0.due <= next }) {
            try scope.remind(Self.reminder, at: next)
        }
        return reply
    }
}
