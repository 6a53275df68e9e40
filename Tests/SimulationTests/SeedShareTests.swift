import ApusTestKit
import Testing

@Suite("Seeds that the runs of the tests share")
struct SeedShareTests {
    @Test(
        "As many turns as there are play each seed once, whatever the range",
        arguments: [0..<1200, 7..<10, 5000..<5301] as [Range<UInt64>])
    func everySeedHasItsTurn(all: Range<UInt64>) {
        let turns = (0..<SeedShare.turnCount).map { SeedShare.share(of: all, turn: $0 + 1000) }
        #expect(turns.flatMap(\.self).sorted() == Array(all))
        #expect(turns.allSatisfy { $0.count <= all.count / SeedShare.turnCount + 1 })
    }
}
