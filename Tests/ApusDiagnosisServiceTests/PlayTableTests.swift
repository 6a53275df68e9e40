import ApusContract
import ApusCore
import ApusDiagnosisService
import SwiftProtobuf
import Testing

@Suite("The play sessions that a device's owner keeps (IV-G4)")
struct PlayTableTests {
    private static func report(_ session: Int, number: UInt32 = 1) -> ClientPlayReport {
        .with { ($0.session, $0.number) = ("\(session)", number) }
    }

    private static func table(_ sessionsMax: Int = 8, _ accountMax: Int = 4) -> PlayTable {
        PlayTable(sessionsMax: sessionsMax, accountSessionsMax: accountMax)
    }

    @Test("A later report replaces that of its session, and a late one does not")
    func replaces() {
        var table = Self.table()
        #expect(table.keep(Self.report(1, number: 2), of: "anna", now: .zero) == 0)
        #expect(table.keep(Self.report(1, number: 1), of: "anna", now: .zero) == 0)
        #expect(table.plays.map(\.report.number) == [2])
        #expect(table.keep(Self.report(1, number: 3), of: "anna", now: .zero) == 0)
        #expect(table.plays.map(\.report.number) == [3])
    }

    @Test("An account cannot change the session of another one")
    func foreign() {
        var table = Self.table()
        _ = table.keep(Self.report(1), of: "anna", now: .zero)
        _ = table.keep(Self.report(1, number: 9), of: "mallory", now: .zero)
        #expect(table.plays.map(\.account) == ["anna"] && table.plays.map(\.report.number) == [1])
    }

    @Test("An account that reports without end keeps its share, and displaces nobody else's only session")
    func bounds() {
        var table = Self.table(6, 4)
        _ = table.keep(Self.report(0), of: "anna", now: .zero)
        _ = table.keep(Self.report(1), of: "bert", now: .zero)
        var dropped = 0
        for session in 2..<500 { dropped += table.keep(Self.report(session), of: "mallory", now: .zero) }
        #expect(table.plays.count == 6 && dropped == 498 - 4)
        #expect(table.plays.map(\.account).filter { $0 != "mallory" } == ["anna", "bert"])
        // More accounts: the one with the most gives.
        _ = table.keep(Self.report(600), of: "carl", now: .zero)
        #expect(table.plays.count == 6 && table.plays.count { $0.account == "mallory" } == 3)
    }

    @Test("The next account of a device finds nothing of the former one, whose late reports are refused (8003)")
    func handedOver() throws {
        var table = Self.table()
        try table.enter(5)
        _ = table.keep(Self.report(1), of: "anna", now: .zero)
        try table.enter(9)
        #expect(table.plays.isEmpty)
        #expect(throws: ApusError(.illegalRelation)) { try table.enter(5) }
    }
}
