import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf

extension RegisterState: EntityContentMessage {}

extension RegisterWrite: EntityMessage {
    typealias Reply = RegisterResult
    static var method: UInt16 { 0x0e11 }
}

extension RegisterSwap: EntityMessage {
    typealias Reply = RegisterResult
    static var method: UInt16 { 0x0e12 }
}

extension RegisterRead: EntityMessage {
    typealias Reply = RegisterResult
    static var method: UInt16 { 0x0e13 }
    static var isIdempotent: Bool { true }
}

extension EntityKind {
    /// A register whose standby has every acknowledged value.
    static let register = Self(rawValue: 20)
    /// A register in the records.
    static let recordedRegister = Self(rawValue: 21)
}

extension EntityDefinition<RegisterState> {
    /// A register: one number with compare-and-swap. Its operations are linearizable: each takes effect at one moment
    /// between its request and its answer, also through deaths of nodes and cuts between them (D15).
    static func register(_ kind: EntityKind, name: String, durability: EntityDurability) -> Self {
        var definition = Self(kind, name: name, durability: durability)
        definition.on(RegisterWrite.self) { register, message, _ throws(ApusError) in
            register.value = message.value
            return RegisterResult.with { ($0.swapped, $0.value) = (true, register.value) }
        }
        definition.on(RegisterSwap.self) { register, message, _ throws(ApusError) in
            let isExpected = register.value == message.expected
            if isExpected { register.value = message.value }
            return RegisterResult.with { ($0.swapped, $0.value) = (isExpected, register.value) }
        }
        definition.onReading(RegisterRead.self) { register, _, _ throws(ApusError) in
            RegisterResult.with { $0.value = register.value }
        }
        return definition
    }
}
