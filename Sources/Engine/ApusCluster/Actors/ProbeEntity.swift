import ApusCore
package import ApusWire

// The probe's messages; their ids are 0x0f01 to 0x0f03.
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

/// An entity without a purpose of its own, for measurements and tests: it answers what it is told,
/// and counts what came and whether it came in order.
package actor ProbeEntity {
    private var count: UInt64 = 0
    private var outOfOrder: UInt64 = 0
    private var last: UInt64?

    package init() {}

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
        registry.register(.probe, make: { _ in ProbeEntity() }, passivateAfter: passivateAfter) { handlers in
            handlers.on(ProbeEcho.self) { probe, message async throws(ApusError) in await probe.echo(message) }
            handlers.on(ProbeCount.self) { probe, message async throws(ApusError) in
                await probe.note(message.number)
                return ProbeReport()
            }
            handlers.on(ProbeReport.self) { probe, _ async throws(ApusError) in await probe.report() }
        }
    }
}
