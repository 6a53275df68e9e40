import ApusCalls
import ApusCluster
import ApusCore
import SwiftProtobuf
import Testing

/// What a party answers to the renewal of its claim (CALL-5, CALL-9).
@Suite("Renewals of a party's claim (CALL-5, CALL-9)")
struct PartyRenewalTests {
    private let definition = PartyKind(configuration: CallConfiguration()) { _, _ in true }.definition
    private let party = CallParty.device(DeviceID(unchecked: "door"))
    private let call = CallID(shard: ShardID(1), RequestID(high: 1, low: 2))

    private func claim(of endpoints: [String], after party: CallPartyEntity) throws -> EntityTrial<CallPartyEntity> {
        let request = CallClaimRequest.with {
            $0.claim = .with { ($0.call, $0.untilMs) = (call.rawValue, 61_000) }
            $0.endpoints = endpoints
        }
        var trial = EntityTrial(
            party, of: self.party.address, epoch: 1, wallMilliseconds: 1000, reminders: [],
            makeID: { RequestID(high: 3, low: 4) })
        trial.carryOut(CallClaimRequest.method, try request.serializedBytes(), by: definition)
        _ = try trial.answer.get()
        return trial
    }

    private func reports(_ trial: EntityTrial<CallPartyEntity>) throws -> [CallReport] {
        try trial.tellings.filter { $0.method == CallReport.method }.map { try CallReport(serializedBytes: $0.message) }
    }

    @Test("A client of the call without a connection is reported at each renewal: an earlier report may be lost")
    func awayIsReportedAgain() throws {
        var entity = CallPartyEntity.with {
            $0.listeners = [.with { ($0.node, $0.incarnation, $0.number, $0.endpoint) = ("a", 1, 7, "app-1") }]
            $0.session = 5
        }
        for _ in 0..<2 {
            let trial = try claim(of: ["app-1", "app-2"], after: entity)
            let reports = try reports(trial)
            #expect(reports.map(\.endpoint) == ["app-2"])
            #expect(reports.allSatisfy { $0.kind == .sessionEnded && $0.session == 5 && $0.party == party })
            entity = trial.content
        }
    }

    @Test("A claim of another call learns nothing of the clients of the party")
    func refusedClaim() throws {
        let entity = CallPartyEntity.with { $0.state.claim = .with { ($0.call, $0.untilMs) = ("other", 61_000) } }
        let trial = try claim(of: ["app-2"], after: entity)
        #expect(try reports(trial).isEmpty)
    }
}
