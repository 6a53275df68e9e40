import ApusCluster
import ApusCore
import ApusSessions
import ApusTestKit
import ApusWire
import SwiftProtobuf
import Testing

@Suite("Numbers in what edges say to the owner of an identity (D6)")
struct SessionNumberTests {
    @Test("No number of a registration ends the owner, whoever registers next")
    func register() throws {
        let sample = SessionRegister.with {
            $0.place.node = "n1"
            $0.place.incarnation = 1
            $0.place.session = "s"
            $0.account = "a"
            $0.sinceMs = 1
            $0.again = true
            $0.instance = 7
            $0.order.epoch = 1
            $0.order.sequence = 5
        }
        var refusedCount = 0
        for bytes in WireExtremes.variants(of: try sample.serializedBytes()) {
            guard let message = try? SessionRegister(bounded: bytes) else {
                refusedCount += 1
                continue
            }
            var machine = PresenceStateMachine(
                configuration: PresenceStateMachine.Configuration(), epoch: 1, now: .zero, wallSeconds: 0)
            let order = ApusSessions.SessionOrder(epoch: message.order.epoch, sequence: message.order.sequence)
            let registrations: [(UInt64, ApusSessions.SessionOrder?)] = [
                (message.instance, order), (8, nil), (9, order), (10, nil),
            ]
            for (instance, order) in registrations {
                let place = ApusSessions.SessionPlace(
                    node: NodeID(name: NodeName(unchecked: "n1"), incarnation: message.place.incarnation),
                    session: "s\(instance)")
                let given = machine.register(
                    PresenceStateMachine.Registration(place: place, instance: instance, order: order), now: .zero,
                    wallSeconds: message.sinceMs
                ).order
                // Its client shows it again, and then it must not be refused.
                #expect(given.map { $0.sequence <= WireNumber.sequenceMax } ?? true)
            }
        }
        // What is beyond the bounds never comes to the owner.
        #expect(refusedCount >= 8)
        #expect(!SessionRegister.isWithinBounds(.with { $0.order.sequence = .max }))
    }

    @Test("No node silences an owner by an epoch that no shard reaches")
    func words() {
        #expect(!SessionKick.with { $0.order.sequence = .max }.isWithinBounds)
        #expect(!SessionKick.with { $0.epoch = .max }.isWithinBounds)
        #expect(!SessionPresenceChanged.with { $0.epoch = .max }.isWithinBounds)
        #expect(SessionPresenceChanged.with { $0.epoch = WireNumber.termMax }.isWithinBounds)
        #expect(!SessionInspect.with { $0.place.incarnation = .max }.isWithinBounds)
    }
}
