import ApusCore
import ApusTransport
package import ApusWire

// The probe's messages. Their ids are 0x0f01 to 0x0f03.
extension ProbeEcho: EntityMessage {
    package typealias Reply = ProbeEcho
    package static var method: UInt16 { 0x0f01 }
    package static var isIdempotent: Bool { true }
}

extension ProbeCount: EntityMessage {
    package typealias Reply = ProbeReport
    package static var method: UInt16 { 0x0f02 }
}

extension ProbeReport: EntityMessage {
    package typealias Reply = ProbeReported
    package static var method: UInt16 { 0x0f03 }
}

/// An entity for measurements and tests. It echoes its messages, counts them, and checks their order.
package actor ProbeEntity {
    private let executor: TurnExecutor
    package nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

    private var count: UInt64 = 0
    private var outOfOrder: UInt64 = 0
    private var last: UInt64?

    package init(_ context: EntityContext) { executor = context.executor }

    package func echo(_ message: ProbeEcho) -> ProbeEcho { message }

    package func note(_ number: UInt64) {
        count += 1
        if let last, number != last + 1 { outOfOrder += 1 }
        last = number
    }

    package func report() -> ProbeReported {
        var reported = ProbeReported()
        reported.count = count
        reported.outOfOrder = outOfOrder
        return reported
    }

    /// Adds the probe to a node's entities.
    package static func register(in registry: EntityRegistry, passivateAfter: Duration? = nil) {
        registry.register(.probe, make: { ProbeEntity($0) }, passivateAfter: passivateAfter) { handlers in
            handlers.onSync(ProbeEcho.self) { probe, message throws(ApusError) in probe.echo(message) }
            handlers.onSync(ProbeCount.self) { probe, message throws(ApusError) in
                probe.note(message.number)
                return ProbeReport()
            }
            handlers.onSync(ProbeReport.self) { probe, _ throws(ApusError) in probe.report() }
        }
    }
}

// The state of a probe of the entity runtime.
extension ProbeReported: EntityContentMessage {}

extension EntityDefinition<ProbeReported> {
    /// A probe of the entity runtime. Each echo changes its state.
    package static func probe(_ kind: EntityKind, _ durability: EntityDurability) -> Self {
        var definition = Self(kind, name: "probe", durability: durability)
        definition.passivateAfter = nil
        definition.on(ProbeEcho.self) { content, message, _ throws(ApusError) in
            content.count += 1
            return message
        }
        definition.onReading(ProbeReport.self) { content, _, _ throws(ApusError) in content }
        return definition
    }
}

/// Where a probe's recorded states are stored.
package enum ProbeRecords {
    package static let collection = EntityCollection<ProbeReported>("probes", kind: .recordedProbe, layout: 1)
}
