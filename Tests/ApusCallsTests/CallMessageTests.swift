import ApusCalls
import ApusCore
import SwiftProtobuf
import Testing

@Suite("Messages about calls from other nodes")
struct CallMessageTests {
    private static let odd: [CallParty] = [
        CallParty(), .with { $0.kind = .device },
        .with { ($0.kind, $0.id) = (.device, String(repeating: "d", count: 64)) },
        .with { ($0.kind, $0.id) = (.device, String(repeating: "\u{1F600}", count: 20)) },
        .with { ($0.kind, $0.id) = (.account, String(repeating: "a", count: 63)) },
        .with { ($0.kind, $0.id) = (.account, "a/b") }, .with { ($0.kind, $0.id) = (.UNRECOGNIZED(9), "bell") },
    ]

    @Test("A party that is none is refused where a message is read: its name would become the key of an entity")
    func parties() {
        let bell = CallDriver.bell(1).party
        for (party, isWithinBounds) in [(bell, true)] + Self.odd.map({ ($0, false) }) {
            let callee = CallCallee.with { $0.party = party }
            let report = CallReport.with { $0.party = party }
            #expect(report.isWithinBounds == isWithinBounds, "\(party)")
            #expect(CallPeek.with { $0.party = party }.isWithinBounds == isWithinBounds)
            #expect(CallDeliver.with { $0.party = party }.isWithinBounds == isWithinBounds)
            #expect(CallAccept.with { $0.report = report }.isWithinBounds == isWithinBounds)
            for kind in [CallNoteKind.claimed, .refused, .released] {
                #expect(CallNote.with { ($0.kind, $0.party) = (kind, party) }.isWithinBounds == isWithinBounds)
            }
            #expect(CallPlace.with { ($0.caller, $0.callees) = (party, [callee]) }.isWithinBounds == isWithinBounds)
            #expect(CallPlace.with { ($0.caller, $0.callees) = (bell, [callee]) }.isWithinBounds == isWithinBounds)
            #expect(CallOrder.with { ($0.caller, $0.called) = (party, [bell]) }.isWithinBounds == isWithinBounds)
            #expect(CallOrder.with { ($0.caller, $0.called) = (bell, [party]) }.isWithinBounds == isWithinBounds)
        }
        #expect(CallNote.with { $0.kind = .recordWritten }.isWithinBounds)
        for left in [Int64.min, -1, .max] {
            #expect(!CallOrder.with { ($0.caller, $0.called, $0.leftMs) = (bell, [bell], left) }.isWithinBounds)
        }
    }
}
